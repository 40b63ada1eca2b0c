"""A node at one moment: memory, its cgroups, and the room of the file systems a job writes to."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import psutil

from whystuck.evidence.nodes.records import GroupMemory, HostEntry, Volume

CGROUPS = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only its room is asked for
_MAX_GROUPS = 32
_ROOM_TIMEOUT_S = 1.0
# Version 1 writes a number near 2^63 for "no limit".
_NO_LIMIT = 1 << 60


def collect_host(groups: Iterable[str], folders: Iterable[Path], root: Path = CGROUPS) -> HostEntry:
    """Look at this node.

    Args:
        groups: Paths of memory cgroups, as /proc/PID/cgroup has them.
        folders: Folders whose file systems matter, beside /dev/shm and the one for temporary files.
        root: Where cgroups are mounted.

    Returns:
        What could be read; what could not stays at its default.
    """
    sizes: dict[str, int] = {}
    try:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        sizes = {"memory": memory.total, "available": memory.available}
        sizes |= {"swap": swap.total, "swap_free": swap.free}
    except (OSError, RuntimeError, psutil.Error):
        pass
    found = (_read_group(path, root) for path in _with_parents(groups))
    return HostEntry(
        time_ns=time.time_ns(),
        oom_kills=_read_oom_kills(),
        groups=tuple(group for group in found if group),
        volumes=_read_volumes([SHARED_MEMORY, Path(tempfile.gettempdir()), *folders]),
        **sizes,
    )


def _read_oom_kills() -> int:
    """Return how many processes the kernel has ended for want of memory since it was booted."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return -1
    return -1


def _with_parents(groups: Iterable[str]) -> list[str]:
    """List groups and those above them, where the limit often is; the deepest first."""
    found: dict[str, None] = {}
    for group in groups:
        if group.startswith("/"):
            path = PurePosixPath(group)
            found |= dict.fromkeys(str(one) for one in (path, *path.parents))
    return sorted(found, key=lambda path: (-len(PurePosixPath(path).parts), path))[:_MAX_GROUPS]


def _read_group(path: str, root: Path) -> GroupMemory | None:
    relative = path.lstrip("/")
    new, old = root / relative, root / "memory" / relative
    if (new / "memory.current").is_file():
        return GroupMemory(
            path=path,
            version=2,
            limit=_read_number(new / "memory.max", 0),
            used=_read_number(new / "memory.current", 0),
            peak=_read_number(new / "memory.peak", 0),
            oom_kills=_read_field(new / "memory.events", "oom_kill"),
            limit_hits=_read_field(new / "memory.events", "max"),
        )
    if (old / "memory.limit_in_bytes").is_file():
        limit = _read_number(old / "memory.limit_in_bytes", 0)
        return GroupMemory(
            path=path,
            version=1,
            limit=0 if limit > _NO_LIMIT else limit,
            used=_read_number(old / "memory.usage_in_bytes", 0),
            peak=_read_number(old / "memory.max_usage_in_bytes", 0),
            oom_kills=_read_field(old / "memory.oom_control", "oom_kill"),
            limit_hits=_read_number(old / "memory.failcnt", -1),
        )
    return None


def _read_number(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number
        return default


def _read_field(path: Path, name: str) -> int:
    try:
        fields = dict(line.split() for line in path.read_text().splitlines())
        return int(fields[name])
    except (OSError, ValueError, KeyError):
        return -1


def read_free(path: Path) -> int:
    """Return the free bytes of the file system of a path; -1 when it is not there."""
    try:
        room = os.statvfs(path)
    except OSError:
        return -1
    return room.f_bavail * room.f_frsize


def _read_volumes(paths: Iterable[Path]) -> tuple[Volume, ...]:
    """Return the room of each file system once, under the first of the paths on it.

    A server that does not answer keeps whoever asks it: a thread does, and is left alone then.
    """
    by_device: dict[int, Volume] = {}

    def read() -> None:
        for path in paths:
            try:
                device, room = path.stat().st_dev, os.statvfs(path)
            except OSError:
                continue
            entry = Volume(
                path=str(path),
                size=room.f_blocks * room.f_frsize,
                free=room.f_bavail * room.f_frsize,
                files_free=room.f_favail if room.f_files else -1,
            )
            by_device.setdefault(device, entry)

    thread = threading.Thread(target=read, name="room", daemon=True)
    thread.start()
    thread.join(_ROOM_TIMEOUT_S)
    return tuple(by_device.values())
