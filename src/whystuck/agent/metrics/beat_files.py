"""The heartbeats of all jobs of this node that run under ``whystuck run``."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whystuck.collect.beats import LAYOUT, BeatSlot, parse_beat

PREFIX = "whystuck-"
"""Names of job folders: this, the number of their user, and letters."""
_ROOTS = (Path("/dev/shm"),)  # noqa: S108 - what lies there is checked
_BEAT = "beat-"
_MAX_FOLDERS = 64
_MAX_BEATS = 1024
_LIST_EVERY_S = 10.0
# Longer than a tick of any kernel's clock: what is younger may change again at the same time.
_SETTLED_NS = 1_000_000_000


@dataclass(frozen=True)
class RankBeat:
    """The last heartbeat of one process."""

    pid: int
    folder: Path
    slot: BeatSlot


class BeatFiles:
    """Finds job folders and reads the beats in them.

    Args:
        job_dir: The only folder to look into; else those of this user, or of all users for root.

    Anybody may put a folder or file of such a name there, so owner and kind are checked, links are
    not followed, and a pipe cannot hold us up.
    """

    def __init__(self, job_dir: Path | None = None) -> None:
        self._job_dir = job_dir
        self._folders: Sequence[Path] = ()
        self._listed_s = float("-inf")
        self._known: dict[Path, tuple[int, Sequence[Path]]] = {}

    def read_all(self) -> list[RankBeat]:
        """Read the beats of all processes, also of ended ones whose files are still there."""
        now_s = time.monotonic()
        if now_s - self._listed_s >= _LIST_EVERY_S:
            self._folders, self._listed_s = self._list_folders(), now_s
        return [beat for folder in self._folders for beat in _read_folder(folder)]

    def _list_folders(self) -> Sequence[Path]:
        if self._job_dir is not None:
            return (self._job_dir,)
        roots = {*_ROOTS, Path(tempfile.gettempdir())}
        return sorted(folder for root in roots for folder in self._list_root(root))[:_MAX_FOLDERS]

    def _list_root(self, root: Path) -> Sequence[Path]:
        """List the job folders in a folder: anew only where it has changed, as it may hold much."""
        try:
            changed_ns = root.stat().st_mtime_ns
        except OSError:
            return ()
        before_ns, folders = self._known.get(root, (0, ()))
        if changed_ns != before_ns:
            is_settled = time.time_ns() - changed_ns > _SETTLED_NS
            folders = [one for one in map(Path, _scan(root, PREFIX)) if _is_job_folder(one)]
            self._known[root] = (changed_ns if is_settled else 0, folders)
        return folders


def _scan(folder: Path | str, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (one.path for one in entries if one.name.startswith(prefix))
    except OSError:
        return


def _is_job_folder(folder: Path) -> bool:
    number = folder.name.removeprefix(PREFIX).partition("-")[0]
    try:
        status = folder.lstat()
    except OSError:
        return False
    ours = os.geteuid() in {0, status.st_uid}
    return stat.S_ISDIR(status.st_mode) and number == str(status.st_uid) and ours


def _read_folder(folder: Path) -> list[RankBeat]:
    found = []
    for path in list(_scan(folder, _BEAT))[:_MAX_BEATS]:
        number = path.rpartition("/")[2].removeprefix(_BEAT)
        if number.isascii() and number.isdecimal() and (slot := _read_slot(path)) is not None:
            found.append(RankBeat(int(number), folder, slot))
    return found


def _read_slot(path: str) -> BeatSlot | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        for _ in range(3):
            slot = parse_beat(os.pread(descriptor, LAYOUT.size, 0))
            if slot is not None:
                return slot
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None
