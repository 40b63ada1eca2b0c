"""The heartbeats of all jobs of this node that run under ``whystuck run``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from whystuck.collect.beats import BeatSlot, read_beat_in
from whystuck.collect.job_dirs import is_job_dir
from whystuck.guarded.folders import folder_at, list_names

PREFIX = "whystuck-"
"""Names of job folders: this, the number of their user, and letters."""
_ROOTS = (Path("/dev/shm"),)  # noqa: S108 - what lies there is checked
_BEAT = "beat-"
_MAX_FOLDERS = 64
_MAX_BEATS = 1024
_MAX_NAMES = 1 << 13
_MAX_ENTRIES = 1 << 20
_MAX_DIGITS = 10
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
        found = sorted(folder for root in roots for folder in self._list_root(root))
        return _share_out(found)

    def _list_root(self, root: Path) -> Sequence[Path]:
        """List the job folders in a folder: anew only where it has changed, as it may hold much."""
        try:
            changed_ns = root.stat().st_mtime_ns
        except OSError:
            return ()
        before_ns, folders = self._known.get(root, (0, ()))
        if changed_ns != before_ns:
            is_settled = time.time_ns() - changed_ns > _SETTLED_NS
            names = _scan(root, PREFIX, _MAX_ENTRIES)
            folders = [root / name for name in names if _is_job_folder(root / name)]
            self._known[root] = (changed_ns if is_settled else 0, folders)
        return folders


def _share_out(folders: Sequence[Path]) -> Sequence[Path]:
    """Return not more than some of all users: one who makes many hides no other's."""
    turns: dict[str, int] = {}
    ordered = []
    for folder in folders:
        user = folder.name.removeprefix(PREFIX).partition("-")[0]
        turns[user] = turns.get(user, 0) + 1
        ordered.append((turns[user], folder))
    return sorted(folder for _, folder in sorted(ordered)[:_MAX_FOLDERS])


def _scan(folder: Path, prefix: str, limit: int) -> list[str]:
    """Return the names that begin so, of not more than some."""
    try:
        with os.scandir(folder) as entries:
            return [one.name for one in islice(entries, limit) if one.name.startswith(prefix)]
    except OSError:
        return []


def _is_job_folder(folder: Path) -> bool:
    number = folder.name.removeprefix(PREFIX).partition("-")[0]
    is_number = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    return is_number and os.geteuid() in {0, int(number)} and is_job_dir(folder, int(number))


def _read_folder(folder: Path) -> list[RankBeat]:
    found = []
    with suppress(OSError), folder_at(folder, is_private=True) as opened:
        uid = os.fstat(opened).st_uid
        for name in list_names(opened, _MAX_NAMES):
            pid = _pid_of(name)
            slot = read_beat_in(opened, name) if pid and _may_tell_of(uid, pid) else None
            if slot is not None:
                found.append(RankBeat(pid, folder, slot))
            if len(found) >= _MAX_BEATS:
                break
    return found


def _pid_of(name: str) -> int:
    number = name.removeprefix(_BEAT)
    is_pid = number != name and number.isascii() and number.isdecimal()
    return int(number) if is_pid and len(number) <= _MAX_DIGITS else 0


def _may_tell_of(uid: int, pid: int) -> bool:
    """Whether a user may tell of a process: root reads the beats of all users."""
    if uid in {0, os.geteuid()}:
        return True
    try:
        return Path(f"/proc/{pid}").stat().st_uid == uid
    except OSError:
        return False
