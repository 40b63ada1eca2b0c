"""The one way in which evidence is opened: no link is followed, and nothing waits or has no end.

Evidence comes from others. A link in it may lead to any file that its reader may read, and a pipe
or a device keeps whoever opens it waiting. So the path that a user names is resolved once
(`settle`), and what lies at and below it is opened part by part, none of which may be a link then.

What an archive holds has paths as if it lay in the folder that the archive stands for: a path at
which there is nothing is looked for in the archives beside its folders.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from pathlib import Path
from typing import NamedTuple

from whystuck.evidence import archive
from whystuck.evidence.archive import Member, Members
from whystuck.guarded.known_folders import MAX_ABOVE, check_file, open_below

_BUFFER_BYTES = 1 << 16
# What is known of so many files takes some 300 MB.
_MAX_LISTED = 1_000_000


def settle(path: Path) -> Path:
    """Return where a path that a user named leads: his own links are followed, here and once.

    Args:
        path: What the user named.

    Returns:
        The absolute path without links.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return path.absolute()


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not reached through a link."""
    return path.is_dir() and settle(path) == path.absolute()


def open_evidence(path: Path) -> io.BufferedReader:
    """Open a file of evidence to read it, as long as it is now.

    Args:
        path: The file, or where a member of an archive would lie. No part of it may be a link; see
            `settle`.

    Returns:
        A stream. What is written to the file from now on does not come out of it, so that a file
        that grows has an end, and a file of the kernel, which has no size, no content.

    Raises:
        OSError: It cannot be opened, is no regular file, or a part of its path is a link.
    """
    path = path if path.is_absolute() else Path.cwd() / path
    try:
        descriptor = open_below(path)
    except FileNotFoundError:
        descriptor, member = _open_member(path)
        return io.BufferedReader(_Part(descriptor, member.size, member.offset), _BUFFER_BYTES)
    try:
        size = check_file(descriptor)
        return io.BufferedReader(_Part(descriptor, size), _BUFFER_BYTES)
    except BaseException:
        os.close(descriptor)
        raise


class FileStatus(NamedTuple):
    """How many bytes a file of evidence has, and when it was written last."""

    size: int
    modified_ns: int


def look_at(path: Path) -> FileStatus:
    """Return size and time of a file of evidence, or of a member of an archive.

    Raises:
        OSError: There is none.
    """
    try:
        status = path.lstat()
        return FileStatus(status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        descriptor, member = _open_member(path.absolute())
        os.close(descriptor)
        return FileStatus(member.size, member.modified_ns)


def is_there(path: Path) -> bool:
    """Return whether there is something at a path, or in an archive in its place."""
    try:
        look_at(path)
    except OSError:
        return False
    return True


def list_archive(path: Path) -> Members:
    """List the files in an archive of evidence; see `whystuck.evidence.archive`.

    Args:
        path: The archive.

    Returns:
        Its files, by the names that they would have in the folder of the archive.

    Raises:
        OSError: It cannot be read, is no regular file, or lies behind a link.
    """
    path = path.absolute()
    folder = archive.folder_of(path.name)
    descriptor = open_below(path)
    try:
        found = _list_members(descriptor, folder)
    finally:
        os.close(descriptor)
    _listed_folders.add(str(path.with_name(folder)))
    return found


def list_archived(folder: Path) -> list[str]:
    """List what the archive in the place of a folder, or of one above it, holds of that folder.

    Args:
        folder: A folder of a node, of a rank or of a worker, whether it is there or not.

    Returns:
        The names of files, relative to it.
    """
    text = f"{folder.absolute()}/"
    for place, name in _name_archives(text)[:MAX_ABOVE]:
        try:
            members = list_archive(Path(f"{text[:place]}{name}{archive.SUFFIX}"))
        except OSError:
            continue
        inside = text[place:]
        return [one.removeprefix(inside) for one in members.by_name if one.startswith(inside)]
    return []


def _open_member(path: Path) -> tuple[int, Member]:
    """Open the archive that holds what would lie at a path."""
    text = str(path)
    for place, folder in _name_archives(text):
        try:
            descriptor = open_below(Path(f"{text[:place]}{folder}{archive.SUFFIX}"))
        except OSError:
            continue
        try:
            member = _list_members(descriptor, folder).by_name.get(text[place:])
            if member is not None:
                return descriptor, member
        except OSError:
            pass
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _name_archives(text: str) -> list[tuple[int, str]]:
    """Name the folders above a path for which an archive may stand, and where their names begin."""
    found: list[tuple[int, str]] = []
    end = text.rfind("/")
    while end > 0 and len(found) < archive.MAX_PARTS:
        place = text.rfind("/", 0, end) + 1
        if text[:end] in _listed_folders:
            return [(place, text[place:end])]
        found.append((place, text[place:end]))
        end = place - 1
    return found


# The members of the archives of one analysis: to list them again for each would take for ever.
_listed: dict[tuple[int, int, int, int, str], Members] = {}
# The folders that archives stand for which were listed.
_listed_folders: set[str] = set()
_listing = threading.Lock()


def forget_archives() -> None:
    """Let go of what is known of archives, before another analysis."""
    with _listing:
        _listed.clear()
        _listed_folders.clear()


def _list_members(descriptor: int, folder: str) -> Members:
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, folder)
    with _listing:
        known = _listed.get(key)
        if known is not None:
            return known
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            found = archive.list_members(stream, check_file(descriptor), folder)
        held = sum(len(one.by_name) for one in _listed.values()) + len(found.by_name)
        if held > _MAX_LISTED:
            raise OSError(errno.EFBIG, f"all archives hold more than {_MAX_LISTED} files")
        _listed[key] = found
        return found


def size_of(stream: io.BufferedReader) -> int:
    """Return how many bytes a stream of `open_evidence` has."""
    raw = stream.raw
    return raw.size if isinstance(raw, _Part) else os.fstat(stream.fileno()).st_size


class _Part(io.RawIOBase):
    """Some bytes of an open file, and no more of them than it had when it was opened."""

    def __init__(self, descriptor: int, size: int, offset: int = 0) -> None:
        self._file = io.FileIO(descriptor, "rb")
        self._left = self.size = size
        self._offset = self._file.seek(offset) if offset else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.size - self._left, io.SEEK_END: self.size}
        place = max(0, base[whence] + offset)
        self._file.seek(self._offset + place)
        self._left = max(0, self.size - place)
        return place

    def tell(self) -> int:
        # Asked for by whoever buffers it; the kernel need not be.
        return self.size - self._left

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._left:
            return 0
        count = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count

    def readall(self) -> bytes:
        data = self._file.read(self._left) or b""
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()
