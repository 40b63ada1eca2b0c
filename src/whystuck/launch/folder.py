"""The evidence folder of one job, while it is being written."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from whystuck.evidence.errors import StartError
from whystuck.evidence.numbers import is_number
from whystuck.evidence.records import (
    EXIT_FILE,
    INCIDENT_FILE,
    JOB_FILE,
    ExitEntry,
    IncidentRecord,
    JobRecord,
)
from whystuck.safe_text.secrets import hide_arguments

MAX_INCIDENTS = 100
_MAX_NOTES_BYTES = 256 << 10
_JOB_ID_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_ID")


def _do_nothing(_folder: Path) -> None:
    """Nobody else wants to know."""


def default_folder() -> Path:
    """Return ``./whystuck/<UTC time>-<job id or pid>``."""
    job = next(iter(job_ids_of(os.environ)), "")
    safe = "".join(char for char in job if char.isalnum() or char in "-_.")[:64]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("whystuck") / f"{stamp}-{safe or os.getpid()}"


def job_ids_of(environment: Mapping[str, str]) -> list[str]:
    """Return the ids that schedulers and launchers gave the job."""
    return [environment[name] for name in _JOB_ID_VARIABLES if environment.get(name)]


class EvidenceFolder:
    """Paths and small records; every write is whole or not at all."""

    def __init__(self, root: Path, node: str, *, with_round: bool = True) -> None:
        """Make the folder, and that of a new round; raises StartError when it cannot be written."""
        self.root = root.absolute()
        self.node = node
        # Called with the folder of an incident when its report has changed.
        self.on_report: Callable[[Path], None] = _do_nothing
        self._round = 0
        self._section_bytes = _size_of(self.root / "fault.log")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._round = sum(1 for _ in (self.root / "rounds").glob("*"))
            if with_round:
                self.round_dir.mkdir(parents=True)
            elif not os.access(self.root, os.W_OK):
                raise PermissionError(None, "permission denied")
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"the evidence folder `{root}` cannot be written: {reason}"
            raise StartError(
                message, hint="name a folder that you may write with `--evidence DIR`"
            ) from error

    @property
    def round(self) -> int:
        """The number of this round, from 0."""
        return self._round

    @property
    def round_dir(self) -> Path:
        """The folder of this round."""
        return self.root / "rounds" / str(self._round)

    def rank_dir(self, rank: int) -> Path:
        """The folder of one rank in this round."""
        return self.round_dir / self.node / f"rank-{rank}"

    def note(self, text: str) -> None:
        """Add a sentence to ``fault.log``; a log that cannot be written never stops the job."""
        stamp = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        try:
            with (self.root / "fault.log").open("a") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            return

    def copy_notes(self, folder: Path) -> None:
        """Copy what ``fault.log`` tells of this round into the folder of an incident."""
        try:
            with (self.root / "fault.log").open("rb") as file:
                file.seek(self._section_bytes)
                self.write(folder / "fault.log", file.read(_MAX_NOTES_BYTES))
        except OSError:
            return

    def write_job(self, record: JobRecord) -> None:
        """Write ``job.json``, in the folder of the round too: the next round writes its own."""
        data = msgspec.json.format(msgspec.json.encode(record))
        for folder in (self.root, self.round_dir):
            self.write(folder / JOB_FILE, data)

    def write_exit(self, rank: int, entry: ExitEntry) -> None:
        """Write how a rank ended."""
        self.write(self.rank_dir(rank) / EXIT_FILE, msgspec.json.encode(entry))

    def next_incident(self) -> Path:
        """Make the folder of a new incident; the oldest closed ones go when there are too many."""
        incidents = self.root / "incidents"
        names = sorted(int(one.name) for one in incidents.glob("[0-9]*") if is_number(one.name))
        self._forget_closed(incidents, names)
        for number in itertools.count(names[-1] + 1 if names else 0):
            folder = incidents / f"{number:03d}"
            # An agent may take a number for traces of its own at the same moment.
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise AssertionError  # there is always a next number

    @staticmethod
    def write_incident(folder: Path, record: IncidentRecord) -> None:
        """Write ``incident.json``."""
        EvidenceFolder.write(folder / INCIDENT_FILE, msgspec.json.encode(record))

    @staticmethod
    def write(path: Path, data: bytes) -> None:
        """Write a file whole; a full disk loses the file, not the job."""
        part = path.with_name(f"{path.name}.part-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)

    @staticmethod
    def _forget_closed(incidents: Path, numbers: list[int]) -> None:
        too_many = len(numbers) - MAX_INCIDENTS + 1
        for number in numbers:
            if too_many <= 0:
                return
            folder = incidents / f"{number:03d}"
            try:
                record = msgspec.json.decode(
                    (folder / INCIDENT_FILE).read_bytes(), type=IncidentRecord
                )
            except (OSError, msgspec.DecodeError):
                continue
            if record.closed_after_s is not None:
                shutil.rmtree(folder, ignore_errors=True)
                too_many -= 1


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
