"""Evidence on a file system that many nodes share: gathered here, written as one file a node.

Each rank's stacks, dump and logs are files of their own, some hundred operations on names and
attributes for each rank: where thousands of ranks stall at once, one server gets all of them. So
an incident is written to a folder of this node, where it is diagnosed too, and reaches the shared
folder as an archive (`whystuck.evidence.archive`) beside the report. What is written once for each
rank of a round goes the same way when the round ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from whystuck.collect.node.mounts import Mounts
from whystuck.evidence.archive import SUFFIX, write_archive
from whystuck.evidence.records import INCIDENT_FILE
from whystuck.guarded.folders import folder_at
from whystuck.launch.incidents.copies import BackgroundCopy
from whystuck.launch.incidents.folder import EvidenceFolder, write_whole
from whystuck.launch.jobdir import is_in_use, mark_owner

VARIABLE = "WHYSTUCK_EVIDENCE_FORM"
ARCHIVE, FILES = "archive", "files"
# Not `whystuck-`, as job folders are called.
PREFIX = "whystuck.stage-"
# Over so long nodes spread what they write: so that a thousand do not come at once, and a report
# is there before somebody looks for it. A job that has ended waits for less.
SPREAD_S = 5.0
END_SPREAD_S = 2.0
# Op logs of an incident and of a round have 256 MiB each at most.
_MIN_ROOM_BYTES = 1 << 30
_KEPT_S = 86_400.0
_BUFFER_BYTES = 1 << 20
_INCIDENTS = "incidents"
# Plain files beside the archive; the last one makes the folder an incident.
_PLAIN = ("report.json", "report.txt", "report.html", INCIDENT_FILE)


def wants_archive(root: Path, environment: Mapping[str, str]) -> bool:
    """Return whether evidence in a folder is to be written as an archive a node.

    Args:
        root: The evidence folder.
        environment: Its variable says so, or the file system does.
    """
    form = environment.get(VARIABLE, "")
    if form in {ARCHIVE, FILES}:
        return form == ARCHIVE
    return _is_shared(root)


def _is_shared(folder: Path) -> bool:
    mount = Mounts(os.getpid()).find(str(folder.resolve()))
    return mount is not None and mount.is_shared


def find_turn(node: str, environment: Mapping[str, str]) -> float:
    """Return when it is the turn of a node to write, from 0 to 1; always the same for a node."""
    number, count = environment.get("SLURM_NODEID", ""), environment.get("SLURM_NNODES", "")
    if number.isdecimal() and count.isdecimal() and int(number) < int(count):
        return int(number) / int(count)
    return zlib.crc32(node.encode(errors="replace")) / (1 << 32)


class Staging(BackgroundCopy):
    """Writes what is gathered in a local folder to the evidence folder on a shared file system."""

    def __init__(
        self, evidence: EvidenceFolder, stage: Path, say: Callable[[str], None], turn: float
    ) -> None:
        """Gather in ``stage`` from now on; ``turn`` is as `find_turn` says."""
        self._evidence = evidence
        self._turn = turn
        self._seen: set[Path] = set()
        self._written: dict[Path, object] = {}
        evidence.stage = stage
        evidence.on_report = self.push
        super().__init__(str(evidence.root), stage, say)

    def _list_left(self) -> Iterable[Path]:
        for kind in (_INCIDENTS, "rounds"):
            with suppress(FileNotFoundError):
                for one in sorted((self._root / kind).iterdir()):
                    yield self._evidence.root / kind / one.name

    def _copy(self, folder: Path, is_last: bool) -> None:  # noqa: FBT001 - as its base
        work = self._root / folder.relative_to(self._evidence.root)
        # An incident may have been none after all; that of a job that was killed has no report.
        if not work.is_dir():
            return
        self._wait_for_turn(folder)
        folder = self._evidence.claim(folder)
        self._write_archive(work, folder)
        for name in _PLAIN:
            self._write_plain(work / name, folder / name)
        if is_last:
            shutil.rmtree(work, ignore_errors=True)

    def _wait_for_turn(self, folder: Path) -> None:
        """Wait before the first write of an incident where others write at the same moment."""
        is_incident = folder.parent.name == _INCIDENTS
        if not is_incident or folder in self._seen or not self._evidence.has_peers:
            return
        self._seen.add(folder)
        if self._is_ending.wait(self._turn * SPREAD_S):
            time.sleep(self._turn * END_SPREAD_S)

    def _write_archive(self, work: Path, folder: Path) -> None:
        node = self._evidence.node
        files = dict(_name_members(work, node))
        state = [(name, _state_of(path)) for name, path in files.items()]
        target = folder / f"{node}{SUFFIX}"
        if not files or self._written.get(target) == state:
            return
        part = target.with_name(f"{target.name}.part-{os.getpid()}")
        try:
            with part.open("wb", buffering=_BUFFER_BYTES) as out:
                write_archive(out, node, files.items())
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        self._written[target] = state

    def _write_plain(self, source: Path, target: Path) -> None:
        with suppress(FileNotFoundError):
            data = source.read_bytes()
            if self._written.get(target) != data:
                write_whole(target, data)
                self._written[target] = data


def _name_members(work: Path, node: str) -> Iterator[tuple[str, Path]]:
    """Name the files of an incident as in the folder of its node; what lies beside it goes in."""
    for path in sorted(work.rglob("*")):
        if path.is_file() and ".part-" not in path.name:
            name = path.relative_to(work).as_posix()
            if name not in _PLAIN:
                yield name.removeprefix(f"{node}/"), path


def _state_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@contextmanager
def staging(
    evidence: EvidenceFolder, say: Callable[[str], None], *, is_wanted: bool = True
) -> Iterator[None]:
    """Gather what is written for an evidence folder in a local one while the block runs.

    Nothing is changed where the evidence lies on a file system of this node, or there is no room.

    Args:
        evidence: The folder.
        say: Prints a text for the user.
        is_wanted: Whether this is for the shared folder, and not for a copy elsewhere.
    """
    is_wanted = is_wanted and wants_archive(evidence.root, os.environ)
    stage = _make_stage() if is_wanted else None
    if stage is None:
        if is_wanted:
            evidence.note("This node has no room for incidents: they are written file by file.")
        yield
        return
    evidence.note(f"Incidents are gathered in {stage}, and written here as one file a node.")
    writer = Staging(evidence, stage, say, find_turn(evidence.node, os.environ))
    try:
        yield
    finally:
        if writer.finish():
            shutil.rmtree(stage, ignore_errors=True)


def _make_stage() -> Path | None:
    """Make a private folder on this node; None where it has no place for one."""
    root = Path(tempfile.gettempdir())
    if _is_shared(root):
        root = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the folder private
    with suppress(OSError):
        _remove_old(root)
        room = os.statvfs(root)
        if room.f_bavail * room.f_frsize >= _MIN_ROOM_BYTES:
            stage = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=root))
            mark_owner(stage)  # as long as this process lives
            return stage
    return None


def _remove_old(root: Path) -> None:
    """Remove folders of watchers that were killed, a day later: what they hold is nowhere else."""
    for folder in root.glob(f"{PREFIX}{os.getuid()}-*"):
        with (
            suppress(OSError, ValueError),
            folder_at(folder, uid=os.getuid(), is_private=True),
        ):
            is_old = time.time() - folder.lstat().st_mtime > _KEPT_S
            if is_old and not is_in_use(folder):
                shutil.rmtree(folder, ignore_errors=True)
