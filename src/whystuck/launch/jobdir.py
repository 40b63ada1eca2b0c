"""The job folder: a private, short-lived place for sockets and heartbeats (not the evidence)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from whystuck.collect.job_dirs import artifact_opened, is_job_dir, read_artifact

PREFIX = "whystuck-"
_OWNER_FILE, _LOCK_FILE = "owner", "lock"
_MAX_PID_BYTES = 32
_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the folder private
# Containers often have 64 MiB, of which data loaders need all.
_MIN_ROOM_BYTES = 256 << 20


@contextmanager
def make_job_dir() -> Iterator[Path]:
    """Make the folder, readable by its owner only, and remove it in the end.

    It lies in memory where that is possible: beats must not wake a disk. The path is short
    because the name of a unix socket has at most 108 bytes.
    """
    root = _root()
    for place in {_MEMORY, root}:
        _reap(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=root))
    lock = mark_owner(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def mark_owner(folder: Path) -> int:
    """Note in a folder that this process uses it, as long as a descriptor is open: return that."""
    lock = os.open(folder / _LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / _OWNER_FILE).write_text(str(os.getpid()))
    return lock


def is_in_use(folder: Path) -> bool:
    """Tell whether the supervisor of a folder lives; raises OSError or ValueError as `owner_of`.

    Its pid may be another process by now, and that of none where it runs in a container.
    """
    owner = owner_of(folder)
    try:
        with artifact_opened(folder / _LOCK_FILE) as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:  # it is of an earlier release
        return psutil.pid_exists(owner)
    except BlockingIOError:
        return True
    return False


def list_job_dirs() -> list[Path]:
    """Return the job folders of this user whose supervisor lives, oldest first."""
    found = []
    for root in {_MEMORY, Path(tempfile.gettempdir())}:
        for folder in _list_ours(root):
            with suppress(OSError, ValueError):
                if is_in_use(folder):
                    found.append((folder.lstat().st_ctime_ns, folder))
    return [folder for _, folder in sorted(found)]


def owner_of(folder: Path) -> int:
    """Return the pid of the supervisor; raises OSError or ValueError when nothing tells it."""
    return int(read_artifact(folder / _OWNER_FILE, _MAX_PID_BYTES))


def _list_ours(root: Path) -> list[Path]:
    """Return the job folders of this user in a folder where anybody may make what he likes."""
    uid = os.getuid()
    return [one for one in sorted(root.glob(f"{PREFIX}{uid}-*")) if is_job_dir(one, uid)]


def _root() -> Path:
    """Return where job folders are made: in memory, unless the job may soon have filled it."""
    with suppress(OSError):
        room = os.statvfs(_MEMORY)
        if os.access(_MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= _MIN_ROOM_BYTES:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _reap(root: Path) -> None:
    """Remove folders of supervisors that were killed."""
    for folder in _list_ours(root):
        with suppress(OSError, ValueError):
            if not is_in_use(folder):
                shutil.rmtree(folder, ignore_errors=True)
