"""Folders of evidence that were opened a moment ago, so that files in them open at once."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

LINK = "it is a link, or reached through one; links in evidence are not followed"
NO_FILE = "it is no regular file"
# A folder of a worker lies in that of a rank, and that in the folder of a node.
MAX_ABOVE = 3
# A file that is so much larger than what the disk holds of it is mostly holes.
_MOST_SPARSE = 100
_SPARSE_FROM_BYTES = 64 << 20
_BLOCK_BYTES = 512
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# Without O_PATH a folder must be readable to be passed.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def check_file(descriptor: int) -> int:
    """Return the size of a file.

    One that is nothing but holes is refused: 1 TB of zeros takes no room, but hours to read.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NO_FILE)
    held = getattr(status, "st_blocks", 0) * _BLOCK_BYTES
    if status.st_size < _SPARSE_FROM_BYTES or held * _MOST_SPARSE > status.st_size:
        return status.st_size
    if not held and hasattr(os, "SEEK_DATA"):
        # Some file systems do not say what they hold; they have data at the start then.
        with suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_DATA)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return status.st_size
    reason = f"it is sparse: of its {status.st_size} bytes, the disk holds {held}"
    raise OSError(errno.EFBIG, reason)


def open_below(path: Path) -> int:
    """Open a file through its folder, without a link on the way; return its descriptor."""
    if ".." in path.parts:
        raise OSError(errno.EINVAL, "its path leads upwards")
    try:
        return os.open(path.name, _FILE, dir_fd=_of_thread.known.find(path.parent))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise OSError(errno.ELOOP, LINK) from error
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket; a pipe that nobody reads
            raise OSError(errno.EINVAL, NO_FILE) from error
        raise


class _KnownFolder:
    """The folder of the file that was opened last: the next one is mostly beside it."""

    def __init__(self) -> None:
        self._path = Path()
        self._descriptor = -1
        self._identity = (-1, -1)

    def find(self, folder: Path) -> int:
        """Return a descriptor of a folder, which is valid until the next call.

        Raises:
            OSError: It cannot be opened, or a part of its path is a link.
        """
        if folder != self._path or self._identity != _identify(folder):
            # Where there is no such folder, that of the archive in its place stays at hand.
            descriptor = _open_folder(folder)
            self.forget()
            self._descriptor = descriptor
            self._path, self._identity = folder, _identify(self._descriptor)
        return self._descriptor

    def forget(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path = -1, Path()

    def __del__(self) -> None:
        with suppress(OSError):
            self.forget()


class _ThreadsFolder(threading.local):
    """The folder of each thread. It goes with the thread; a local's own ``__del__`` would not."""

    def __init__(self) -> None:
        self.known = _KnownFolder()


_of_thread = _ThreadsFolder()


def _identify(folder: Path | int) -> tuple[int, int]:
    """Return what tells a folder from another one that has come to its place."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - a path or a number
    except OSError:  # gone, or its path is too long to be looked at whole
        return -1, -1
    return status.st_dev, status.st_ino


def _open_folder(folder: Path) -> int:
    """Open a folder part by part, from the root on."""
    first, *others = folder.parts
    place = os.open(first, _FOLDER)
    for name in others:
        above = place
        try:
            place = os.open(name, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return place
