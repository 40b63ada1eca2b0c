"""Files in a folder that is open: looked at, read, made and removed, whatever lies there by now.

Nothing here follows a link, waits for the other end of a pipe, or reads without a bound.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Final

from whystuck.guarded.opening import GuardError

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def folder_at(path: str | Path, *, uid: int = -1, is_private: bool = False) -> Iterator[int]:
    """Open a folder for the time of a block, unless a link lies in its place.

    Args:
        path: The folder. Those above it are trusted: links in them are followed.
        uid: Whose it must be; -1 for anybody's.
        is_private: Whether nobody else may be able to enter it.

    Yields:
        Its descriptor.

    Raises:
        GuardError: It is another user's, or open to others.
        OSError: It cannot be opened.
    """
    folder = os.open(path, FOLDER_FLAGS)
    try:
        check_folder(folder, uid=uid, is_private=is_private)
        yield folder
    finally:
        os.close(folder)


def check_folder(folder: int, *, uid: int = -1, is_private: bool = False) -> None:
    """Raise GuardError for an open folder of another user, or one that others may enter."""
    status = os.fstat(folder)
    if uid not in {-1, status.st_uid}:
        raise GuardError(f"the folder belongs to uid {status.st_uid}")
    if is_private and status.st_mode & _OTHERS:
        raise GuardError("the folder is open to other users")


def list_names(folder: int, limit: int) -> list[str]:
    """Return the names in an open folder, not more than some; raises OSError."""
    with os.scandir(folder) as entries:
        return [one.name for one in islice(entries, limit)]


def find_file(folder: int, name: str, *, uid: int = -1) -> os.stat_result | None:
    """Return what is known of a plain file in an open folder, None when there is no such file.

    Args:
        folder: The folder.
        name: The file.
        uid: Whose it must be, with no other name anywhere; -1 for anybody's.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return status if not _tell_odd(status, uid) else None


def _tell_odd(status: os.stat_result, uid: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if uid >= 0 and status.st_uid != uid:
        return f"it belongs to uid {status.st_uid}"
    if uid >= 0 and status.st_nlink != 1:
        return "it has another name, and may be another user's"
    return ""


def open_file(folder: int, name: str, *, uid: int = -1) -> int:
    """Open a plain file in an open folder for reading.

    Args:
        folder: The folder.
        name: The file.
        uid: Whose it must be, with no other name anywhere; -1 for anybody's.

    Returns:
        Its descriptor.

    Raises:
        GuardError: It is no plain file, or another user's.
        OSError: It cannot be opened.
    """
    if "/" in name:
        raise GuardError("its name has a slash in it")
    file = os.open(name, FILE_FLAGS, dir_fd=folder)
    if odd := _tell_odd(os.fstat(file), uid):
        os.close(file)
        raise GuardError(odd)
    return file


def read_file(
    folder: int, name: str, max_bytes: int, *, uid: int = -1
) -> tuple[bytes, os.stat_result]:
    """Return the first bytes of a plain file in an open folder, and what is known of it.

    Raises GuardError and OSError as `open_file` does.
    """
    file = open_file(folder, name, uid=uid)
    try:
        with open(file, "rb", buffering=0, closefd=False) as stream:
            pieces, left = [], max_bytes
            while left > 0 and (piece := stream.read(left)):
                pieces.append(piece)
                left -= len(piece)
        return b"".join(pieces), os.fstat(file)
    finally:
        os.close(file)


def make_file(folder: int, name: str, mode: int = 0o600) -> int:
    """Make a file that was not there, and return its descriptor; raises OSError."""
    return os.open(name, _MAKE_FLAGS, mode, dir_fd=folder)


def put_file(folder: int, name: str, data: bytes, *, owner: tuple[int, int] | None = None) -> None:
    """Write a file whole in an open folder, in the place of whatever has its name.

    Args:
        folder: The folder.
        name: The file, which only its owner may read.
        data: What goes into it.
        owner: The uid and gid that it gets; ours when left out.

    Raises:
        OSError: It cannot be made.
    """
    with file_put(folder, name) as stream:
        stream.write(data)
        if owner is not None:
            os.fchown(stream.fileno(), *owner)


@contextmanager
def file_put(folder: int, name: str) -> Iterator[IO[bytes]]:
    """Give a stream for what `put_file` writes; the file is there when the block ends.

    Raises OSError when it cannot be made.
    """
    part = f".{name}.{secrets.token_hex(4)}"
    file = make_file(folder, part)
    try:
        with os.fdopen(file, "wb") as stream:
            yield stream
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def evict_others(path: Path, names: Iterable[str]) -> None:
    """Remove what other users laid under some names into a folder of ours that all may add to.

    A folder that is not empty gets another name. Raises OSError when the folder cannot be opened.
    """
    with folder_at(path, uid=os.geteuid()) as folder:
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if status.st_uid != os.geteuid():
                    aside = f".{name}.{secrets.token_hex(4)}"
                    os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
                    os.unlink(aside, dir_fd=folder)


def remove_same(folder: int, name: str, status: os.stat_result) -> bool:
    """Remove a file from an open folder if it is the one that was looked at; return whether."""
    try:
        if not os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), status):
            return False
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


__all__ = [
    "check_folder",
    "evict_others",
    "file_put",
    "find_file",
    "folder_at",
    "list_names",
    "make_file",
    "open_file",
    "put_file",
    "read_file",
    "remove_same",
]
