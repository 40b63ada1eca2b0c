"""The job folder: a private, short-lived place for sockets and heartbeats (not the evidence)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whystuck.collect.job_dirs import artifact_opened, is_job_dir, read_artifact
from whystuck.collect.processes.proc_files import read_start

PREFIX = "whystuck-"
_OWNER_FILE = "owner"
_START_FILE = "owner-start"
_MAX_NUMBER_BYTES = 32
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
    try:
        with owned(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Have a folder belong to this process, for the time of a block.

    Containers may share ``/dev/shm`` and have pids of their own each (``docker run --ipc=host``):
    that no process here has the pid of an owner does not tell that it has ended. Its lock does.
    """
    start = read_start(os.getpid())
    if start is not None:
        (folder / _START_FILE).write_text(str(start[1]))
    part = folder / f"{_OWNER_FILE}.part"
    with part.open("w") as file:
        # On a file system without locks, a folder is left to be removed by hand.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(str(os.getpid()))
        file.flush()
        part.replace(folder / _OWNER_FILE)
        yield


def list_job_dirs() -> list[Path]:
    """Return the job folders of this user whose supervisor lives, oldest first."""
    found = []
    for root in {_MEMORY, Path(tempfile.gettempdir())}:
        for folder in _list_ours(root):
            with suppress(OSError, ValueError):
                if _is_owner_here(folder):
                    found.append((folder.lstat().st_ctime_ns, folder))
    return [folder for _, folder in sorted(found)]


def owner_of(folder: Path) -> int:
    """Return the pid of the supervisor; raises OSError or ValueError when nothing tells it."""
    return int(read_artifact(folder / _OWNER_FILE, _MAX_NUMBER_BYTES))


def is_left(folder: Path) -> bool:
    """Return whether the owner of a folder has ended, in whatever container it ran.

    Raises OSError or ValueError when nothing tells it.
    """
    if _is_owner_here(folder):
        return False
    with artifact_opened(folder / _OWNER_FILE) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_owner_here(folder: Path) -> bool:
    """Return whether the owner of a folder is a process that is seen here.

    Its pid may be that of another process: of a later one, or of one in another container.
    """
    start = read_start(owner_of(folder))
    if start is None:
        return False
    try:
        return start[1] == int(read_artifact(folder / _START_FILE, _MAX_NUMBER_BYTES))
    except FileNotFoundError:  # of an older release
        return True


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
            if is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)
