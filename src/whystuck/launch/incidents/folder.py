"""The evidence folder of one job, while it is being written."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import StartError
from whystuck.evidence.fault_events import FAULT_LOG_FILE
from whystuck.evidence.numbers import is_number
from whystuck.evidence.records import (
    EXIT_FILE,
    INCIDENT_FILE,
    JOB_FILE,
    ExitEntry,
    IncidentRecord,
    JobRecord,
)
from whystuck.launch.incidents.fault_files import FaultNote, append_notes, render_notes
from whystuck.launch.incidents.late import LateWriter
from whystuck.safe_text.secrets import hide_arguments

MAX_INCIDENTS = 100
_DEFAULT = "whystuck"
_INCIDENTS = "incidents"
_MAX_NOTES_BYTES = 256 << 10
_JOB_ID_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_ID")


def _do_nothing(_folder: Path, _is_last: bool) -> None:  # noqa: FBT001 - a callback
    """Nobody else wants to know."""


def default_folder() -> Path:
    """Return ``./whystuck/<UTC time>-<job id or pid>``.

    Where another user has made ``./whystuck``, as he can in ``/tmp``, it is a name of ours alone.
    """
    folder = Path(_DEFAULT)
    if _is_foreign(folder):
        folder = Path(f"{_DEFAULT}.{os.getuid()}-{secrets.token_hex(4)}")
    job = next(iter(job_ids_of(os.environ)), "")
    safe = "".join(char for char in job if char.isalnum() or char in "-_.")[:64]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return folder / f"{stamp}-{safe or os.getpid()}"


def job_ids_of(environment: Mapping[str, str]) -> list[str]:
    """Return the ids that schedulers and launchers gave the job."""
    return [environment[name] for name in _JOB_ID_VARIABLES if environment.get(name)]


def _is_foreign(folder: Path) -> bool:
    """Return whether another user has made a folder, or a link, where all may make some.

    He could put another folder in the place of one in it at any time, with links to any file.
    """
    try:
        folder = folder.absolute()
        status, place = folder.lstat(), folder.parent.stat()
    except OSError:  # there is none, or the working directory was removed
        return False
    is_open = place.st_mode & stat.S_IWOTH and status.st_uid != place.st_uid
    return bool(is_open) and status.st_uid not in {0, os.geteuid()}


class EvidenceFolder:
    """Paths and small records; every write is whole or not at all."""

    def __init__(self, root: Path, node: str, *, with_round: bool = True) -> None:
        """Make the folder, and that of a new round; raises StartError when it cannot be written."""
        self.root = root.absolute()
        self.node = node
        # Where incidents and records are gathered that go to a shared file system; see `staging`.
        self.stage: Path | None = None
        # Called with the folder of an incident when its report has changed, and whether it was the
        # last time.
        self.on_report: Callable[[Path, bool], None] = _do_nothing
        self.has_peers = False
        # Writes for us while the job runs, so that nobody waits for a file system that hangs.
        self.late: LateWriter | None = None
        self._round = 0
        self._job_data = b""
        self._notes = b""
        self._last_number = -1
        # Incidents whose number nobody else knows yet, and those that are kept under another one.
        self._unclaimed: set[Path] = set()
        self._kept: dict[Path, Path] = {}
        try:
            parent = self.root.parent
            if parent.name == _DEFAULT and _is_foreign(parent):
                raise PermissionError(None, f"{parent} is another user's")
            self.root.mkdir(parents=True, exist_ok=True)
            self._round = sum(1 for _ in (self.root / "rounds").glob("*"))
            if with_round:
                self._make_round()
            elif not os.access(self.root, os.W_OK):
                raise PermissionError(None, "permission denied")
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"the evidence folder `{root}` cannot be written: {reason}"
            raise StartError(
                message, hint="name a folder that you may write with `--evidence DIR`"
            ) from error

    def select_round(self, number: int) -> None:
        """Write about a round that is over; nodes that share the folder have others."""
        self._round = number

    def _make_round(self) -> None:
        """Make the folder of the round; another node may have taken its number this moment."""
        while True:
            with suppress(FileExistsError):
                self.round_dir.mkdir(parents=True)
                return
            self._round += 1

    @property
    def round(self) -> int:
        """The number of this round, from 0."""
        return self._round

    @property
    def round_dir(self) -> Path:
        """The folder of this round."""
        return self.root / "rounds" / str(self._round)

    def rank_dir(self, rank: int) -> Path:
        """The folder of one rank in this round, for what is written all the time."""
        return self.round_dir / self.node / f"rank-{rank}"

    @property
    def records_dir(self) -> Path:
        """The folder of this node for what is written once in a round."""
        return (self.stage or self.root) / "rounds" / str(self._round) / self.node

    def records_of(self, rank: int) -> Path:
        """The folder of one rank for what is written once in a round."""
        return self.records_dir / f"rank-{rank}"

    def work_of(self, incident: Path) -> Path:
        """Return where the files of an incident are written."""
        return incident if self.stage is None else self.stage / "incidents" / incident.name

    def place_of(self, incident: Path) -> Path:
        """Return where the files of an incident are to be found now, or soon."""
        if incident in self._unclaimed:
            return self.work_of(incident)
        return self._kept.get(incident, incident)

    @property
    def hangs(self) -> bool:
        """Whether the file system of the folder does not answer."""
        return self.late is not None and self.late.is_stuck

    def later(self, work: Callable[[], None]) -> None:
        """Do something with files in the folder beside all else; what fails is lost."""
        if self.late is not None:
            self.late.put(work)
        else:
            with suppress(OSError):
                work()

    def publish(self, incident: Path, *, is_last: bool = False) -> None:
        """Let what was written of an incident reach its folder, and whoever else wants it."""
        self.on_report(incident, is_last)

    def drop(self, incident: Path) -> None:
        """Remove an incident that is none."""
        work, place = self.work_of(incident), self.place_of(incident)
        shutil.rmtree(work, ignore_errors=True)
        if place != work:
            self.later(lambda: shutil.rmtree(place, ignore_errors=True))

    def note(self, *said: str | FaultNote) -> None:
        """Add sentences to ``fault.log``; a log that cannot be written never stops the job."""
        notes = [FaultNote(one) if isinstance(one, str) else one for one in said]
        now = datetime.now().astimezone()
        lines, events = render_notes(notes, now, self._round, self.node)
        if len(self._notes) < _MAX_NOTES_BYTES:
            self._notes += lines
        self.later(lambda: append_notes(self.root, lines, events))

    def copy_notes(self, folder: Path) -> None:
        """Copy what ``fault.log`` tells of this round into the folder of an incident."""
        self.write(folder / FAULT_LOG_FILE, self._notes[:_MAX_NOTES_BYTES])

    def write_job(self, record: JobRecord) -> None:
        """Write ``job.json``, in the folder of the round too: the next round writes its own."""
        data = msgspec.json.format(msgspec.json.encode(record))
        if data != self._job_data:
            self._job_data = data
            self.later(lambda: self._write_job(data))

    def _write_job(self, data: bytes) -> None:
        for folder in (self.root, self.round_dir):
            self.write(folder / JOB_FILE, data)

    def write_exit(self, rank: int, entry: ExitEntry) -> None:
        """Write how a rank ended."""
        self.write(self.records_of(rank) / EXIT_FILE, msgspec.json.encode(entry))

    def write_exits(self, incident: Path, exits: Mapping[int, ExitEntry]) -> None:
        """Write how ranks ended into an incident."""
        for rank, entry in exits.items():
            path = incident / self.node / f"rank-{rank}" / EXIT_FILE
            self.write(path, msgspec.json.encode(entry))

    def next_incident(self) -> Path:
        """Return the folder of a new incident; the oldest closed ones go when there are too many.

        It is made here, unless the file system does not answer: then its number is ours alone, and
        `claim` makes it.
        """
        if self.late is None or self.stage is None:
            return self._make_incident()
        folder = self.late.ask(self._make_incident, _remove_empty)
        if folder is None:
            self._last_number += 1
            folder = self.root / _INCIDENTS / f"{self._last_number:03d}"
            self._unclaimed.add(folder)
        return folder

    def claim(self, incident: Path) -> Path:
        """Return the folder in which an incident is kept, and make it; raises OSError."""
        if incident in self._unclaimed:
            try:
                incident.mkdir(parents=True)
            except FileExistsError:
                self._kept[incident] = kept = self._make_incident()
                self.note(f"Incident {incident.name} is kept as {kept.name}: it was taken.")
            self._unclaimed.discard(incident)
        return self._kept.get(incident, incident)

    def _make_incident(self) -> Path:
        incidents = self.root / _INCIDENTS
        names = sorted(int(one.name) for one in incidents.glob("[0-9]*") if is_number(one.name))
        self._forget_closed(incidents, names)
        for number in itertools.count(max(self._last_number, names[-1] if names else -1) + 1):
            folder = incidents / f"{number:03d}"
            # An agent may take a number for traces of its own at the same moment.
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                self._last_number = number
                return folder
        raise AssertionError  # there is always a next number

    @staticmethod
    def write_incident(folder: Path, record: IncidentRecord) -> None:
        """Write ``incident.json``."""
        EvidenceFolder.write(folder / INCIDENT_FILE, msgspec.json.encode(record))

    @staticmethod
    def write(path: Path, data: bytes) -> None:
        """Write a file whole; a full disk loses the file, not the job."""
        with suppress(OSError):
            try:
                write_whole(path, data)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, data)

    @staticmethod
    def _forget_closed(incidents: Path, numbers: list[int]) -> None:
        too_many = len(numbers) - MAX_INCIDENTS + 1
        for number in numbers:
            if too_many <= 0:
                return
            folder = incidents / f"{number:03d}"
            try:
                record = decode_json((folder / INCIDENT_FILE).read_bytes(), IncidentRecord)
            except (OSError, msgspec.DecodeError):
                continue
            if record.closed_after_s is not None:
                shutil.rmtree(folder, ignore_errors=True)
                too_many -= 1


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in as few operations as that takes; raises OSError."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _remove_empty(folder: Path) -> None:
    folder.rmdir()


def as_text(command: Sequence[str]) -> list[str]:
    """Return the words of a command for records: an argument may hold any bytes."""
    return [os.fsencode(one).decode(errors="replace") for one in command]


def new_job_record(command: list[str], node: str, version: str) -> JobRecord:
    """Return the record of a job that starts now."""
    return JobRecord(
        id=next(iter(job_ids_of(os.environ)), ""),
        command=hide_arguments(command),
        cwd=str(Path.cwd()),
        node=node,
        nodes=[node],
        started_ns=time.time_ns(),
        whystuck_version=version,
    )
