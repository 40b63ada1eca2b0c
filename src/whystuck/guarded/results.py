"""Writing a file where another user may have a say: as ourselves where he has none, else as he."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

from whystuck.guarded.folders import make_file
from whystuck.guarded.opening import GuardError
from whystuck.guarded.processes import Owner
from whystuck.guarded.user_process import UserFileWriter, UserProcess

_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_LINKS: Final = 40


class ForeignFolderError(GuardError):
    """A folder or link of another user, ``uid``, lies on the way."""

    def __init__(self, name: str, uid: int) -> None:
        super().__init__(f"`{name}` on its way belongs to uid {uid}, who may lead it anywhere")
        self.uid = uid


@contextmanager
def written_private(path: str, owner: Owner | None = None) -> Iterator[IO[bytes]]:
    """Write a file whole, which only its user may read; folders above it are made.

    Args:
        path: Where, absolute.
        owner: The other user whose data it is; left out, it is ours. Root writes it with his rights
            where he has a say on the way.

    Yields:
        A stream; what it got lies there when the block ends without an error.

    Raises:
        GuardError: A third user has a say on the way, and this is root.
        OSError: It cannot be written.
    """
    folder, _, name = path.rpartition("/")
    try:
        opened = open_own_folder(folder or "/", makes=True) if owner else open_named(folder or "/")
    except ForeignFolderError as error:
        if owner is None or error.uid != owner.uid:
            raise
        with _written_as(owner, folder or "/", name) as stream:
            yield stream
        return
    try:
        with _written_in(opened, name) as stream:
            yield stream
    finally:
        os.close(opened)


def open_named(path: str) -> int:
    """Open a folder that this user named for what is his own, and make it where it is missing.

    It may be another user's, who then has a say. But root takes none that another user has laid
    where all may make files, as in ``/tmp``.

    Raises:
        ForeignFolderError: It is such a folder.
        OSError: It cannot be opened or made.
    """
    Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(path, _FOLDER)
    above = Path(path).parent.stat()
    if os.geteuid() == 0 and above.st_mode & stat.S_ISVTX:
        others = {Path(path).lstat().st_uid, os.fstat(folder).st_uid} - {0}
        if others:
            os.close(folder)
            raise ForeignFolderError(path, max(others))
    return folder


@contextmanager
def _written_in(folder: int, name: str) -> Iterator[IO[bytes]]:
    part = f".{name[:200]}.{secrets.token_hex(4)}"
    try:
        with os.fdopen(make_file(folder, part), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


@contextmanager
def _written_as(owner: Owner, folder: str, name: str) -> Iterator[IO[bytes]]:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        process = UserProcess(owner, root)
    finally:
        os.close(root)
    with process:
        process.ask("create", folder=folder, name=name)
        is_kept = False
        try:
            yield cast("IO[bytes]", UserFileWriter(process))
            is_kept = True
        finally:
            process.ask("commit", is_kept=is_kept)


def open_own_folder(path: str, *, makes: bool = False) -> int:
    """Open a folder, and see to it that nobody but us and root decides which one that is.

    Args:
        path: The folder, absolute. Links of ours and of root are followed.
        makes: Whether to make it, and those above it, for us alone.

    Returns:
        Its descriptor.

    Raises:
        ForeignFolderError: This is root, and something on the way belongs to another user.
        OSError: It cannot be opened or made.
    """
    if os.geteuid() != 0:  # nobody can have us do what he cannot do himself, but ourselves
        if makes:
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, _FOLDER)
    here, parts, num_links = _open_root(), path.split("/")[::-1], 0
    try:
        while parts:
            part = parts.pop()
            if part in {"", "."}:
                continue
            below = _step(here, part, makes=makes)
            status = os.fstat(below)
            if status.st_uid not in {0, os.geteuid()}:
                os.close(below)
                raise ForeignFolderError(part, status.st_uid)
            if stat.S_ISLNK(status.st_mode):
                num_links += 1
                target = os.readlink("", dir_fd=below)
                os.close(below)
                if num_links > _MAX_LINKS:
                    raise GuardError("its path leads through too many links")
                parts += target.split("/")[::-1]
                below = _open_root() if target.startswith("/") else os.dup(here)
            os.close(here)
            here = below
        return os.open(".", _FOLDER, dir_fd=here)
    finally:
        os.close(here)


def _open_root() -> int:
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _step(folder: int, part: str, *, makes: bool) -> int:
    try:
        return os.open(part, _PATH, dir_fd=folder)
    except FileNotFoundError:
        if not makes:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=folder)
    return os.open(part, _PATH, dir_fd=folder)


__all__ = ["ForeignFolderError", "open_named", "open_own_folder", "written_private"]
