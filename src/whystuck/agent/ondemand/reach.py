"""How the agent comes to the files of a process: as its own, or through a guard.

A process of the agent's user with the same root can do no more than the agent, so its paths are
used as they are. For any other one, paths are opened below its root without links, only files of
its user count, and they are read and removed with his rights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from whystuck.guarded.folders import FOLDER_FLAGS, find_file, list_names, open_file, remove_same
from whystuck.guarded.opening import NO_OPENAT2, GuardError, can_open_below, open_below
from whystuck.guarded.processes import Owner, Pinned
from whystuck.guarded.user_process import UserFileReader, UserProcess

MAX_FILES: Final = 64
MAX_BYTES: Final = 16 << 30
"""The largest trace that is taken from another user: a file with holes costs him nothing."""
_FOLDER_S: Final = 2.0


@dataclass(frozen=True)
class Found:
    """A file, as it was seen: its folder as the process knows it, its name, and what it was."""

    reach: Reach
    folder: str
    name: str
    status: os.stat_result
    is_outside: bool = True
    """Whether it lies at the same path for the agent, and not only for the process."""

    @property
    def path(self) -> str:
        """Its path for the agent."""
        inside = "" if self.is_outside else f"/proc/{self.reach.pid}/root"
        return f"{inside}{self.folder}/{self.name}"

    @property
    def size_bytes(self) -> int:
        """Its size when it was seen."""
        return self.status.st_size

    @contextmanager
    def opened(self) -> Iterator[OpenFile]:
        """Open it for the time of a block; raises OSError when another one lies there now."""
        with self.reach.opened(self) as file:
            yield file


class OpenFile:
    """An open file; `remove` takes away that very file, and no other in its place."""

    def __init__(self, stream: IO[bytes], found: Found, process: UserProcess | None = None) -> None:
        self.stream = stream
        self._found, self._process = found, process

    def remove(self) -> None:
        """Remove it, if it still lies there; raises OSError."""
        if self._process is not None:
            self._process.ask("remove")
            return
        found = self._found
        with found.reach.folder(found.folder, is_outside=found.is_outside) as folder:
            remove_same(folder, found.name, found.status)


class Reach:
    """The way to the files of one process.

    Args:
        pid: The process, as this host sees it; 0 or less when the kernel did not tell.
        uid: Whose it was when it asked for work; -1 when the kernel did not tell.

    Raises:
        GuardError: It cannot be told whose it is, or nothing can be opened safely here.
        OSError: It has ended.
    """

    def __init__(self, pid: int, uid: int = -1) -> None:
        self.pid = pid
        self.owner = Owner(os.geteuid(), os.getegid())
        self.has_our_root = True
        self._pinned: Pinned | None = None
        if pid > 0:
            self._pin(pid, uid)
        elif uid not in {-1, os.geteuid()}:
            raise GuardError("the kernel does not tell which process of another user it is")
        # Root in a container is no equal of root's agent, also where nothing tells its container.
        is_hidden_root = pid <= 0 and uid == 0
        self.is_own = self.owner.is_us and self.has_our_root and not is_hidden_root
        if not (self.is_own or can_open_below()):
            raise GuardError(NO_OPENAT2)

    def _pin(self, pid: int, uid: int) -> None:
        self._pinned = Pinned(pid)
        self.owner = self._pinned.read_owner()
        if uid not in {-1, self.owner.uid}:
            raise GuardError("the process asked as another user than it is now")
        try:
            self.has_our_root = self._pinned.has_our_root()
        except PermissionError:
            if not self.owner.is_us:
                raise GuardError(f"it belongs to uid {self.owner.uid}") from None

    def close(self) -> None:
        """Let go of the process: its trace is known for long, and descriptors are few."""
        if self._pinned is not None:
            self._pinned.close()

    @property
    def wanted_uid(self) -> int:
        """Whose files count; -1 for all."""
        return -1 if self.is_own else self.owner.uid

    @contextmanager
    def folder(self, path: str, *, is_outside: bool = True) -> Iterator[int]:
        """Open a folder for the time of a block; raises OSError.

        Args:
            path: The folder, as the process knows it.
            is_outside: Whether to open it for the agent, where the process has another root.
        """
        if self.is_own and is_outside:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            root = self._open_root(is_outside=is_outside)
            try:
                folder = open_below(root, path, FOLDER_FLAGS)
            finally:
                os.close(root)
        try:
            yield folder
        finally:
            os.close(folder)

    def _open_root(self, *, is_outside: bool) -> int:
        if is_outside or self.has_our_root or self._pinned is None:
            return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._pinned.open_root()

    def list_files(
        self, path: str, *, is_outside: bool = True, made: tuple[int, int] | None = None
    ) -> list[Found]:
        """Return the files in a folder of the process, empty when it cannot be opened.

        Args:
            path: The folder.
            is_outside: Where, as for `folder`.
            made: Its device and number, where the agent has made it.
        """
        try:
            with self.folder(path, is_outside=is_outside) as folder:
                status = os.fstat(folder)
                is_same = made in {None, (status.st_dev, status.st_ino)}
                if not is_same or self.wanted_uid not in {-1, status.st_uid}:
                    return []
                found = [
                    (name, find_file(folder, name, uid=self.wanted_uid))
                    for name in list_names(folder, MAX_FILES)
                ]
        except OSError:
            return []
        return [Found(self, path, name, one, is_outside) for name, one in found if one is not None]

    def find(self, path: str) -> Found | None:
        """Return the file at a path that the process was told, None when there is none of it."""
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        try:
            with self.folder(parent, is_outside=self.has_our_root) as folder:
                status = find_file(folder, name, uid=self.wanted_uid)
        except OSError:
            return None
        return status and Found(self, parent, name, status, self.has_our_root)

    @contextmanager
    def opened(self, found: Found) -> Iterator[OpenFile]:
        """Open a file for the time of a block; raises OSError, GuardError with the reason."""
        if not self.is_own:
            with self._opened_as_user(found) as file:
                yield file
            return
        with self.folder(found.folder, is_outside=found.is_outside) as folder:
            stream = os.fdopen(open_file(folder, found.name), "rb", buffering=0)
        with stream:
            if not os.path.samestat(os.fstat(stream.fileno()), found.status):
                raise GuardError("another file has come to its place")
            yield OpenFile(stream, found)

    @contextmanager
    def _opened_as_user(self, found: Found) -> Iterator[OpenFile]:
        if found.size_bytes > MAX_BYTES:
            raise GuardError(f"it has more than {MAX_BYTES >> 30} GiB")
        with self._process(is_outside=found.is_outside) as process:
            same = [found.status.st_dev, found.status.st_ino]
            told = process.ask("open", folder=found.folder, name=found.name, same=same)
            stream = UserFileReader(process, min(told["size_bytes"], MAX_BYTES))
            yield OpenFile(cast("IO[bytes]", stream), found, process)

    @contextmanager
    def _process(self, *, is_outside: bool) -> Iterator[UserProcess]:
        root = self._open_root(is_outside=is_outside)
        try:
            process = UserProcess(self.owner, root)
        finally:
            os.close(root)
        with process:
            yield process

    def make_folder(self, path: str) -> None:
        """Make a folder for a file of the process, with its rights; raises OSError."""
        if self.is_own:
            Path(path).mkdir(parents=True, exist_ok=True)
            return
        with suppress(FileNotFoundError), self.folder(path, is_outside=self.has_our_root):
            return
        root = self._open_root(is_outside=self.has_our_root)
        try:
            with UserProcess(self.owner, root, timeout_s=_FOLDER_S) as process:
                process.ask("folder", folder=path)
        finally:
            os.close(root)


def choose_number(pid: int, told: int) -> int:
    """Return the pid that a process has for itself: what it tells, unless that cannot be.

    Args:
        pid: The process, as this host sees it; 0 or less when the kernel did not tell.
        told: What it says.
    """
    try:
        with Pinned(pid) as process:
            numbers = process.read_numbers()
    except OSError:
        return told
    return numbers[-1] if numbers and told not in numbers else told


def reach_own(path: Path) -> Found:
    """Return a file of the agent's own; raises OSError when it is not there."""
    return Found(Reach(0), str(path.parent), path.name, path.lstat())


__all__ = ["MAX_BYTES", "Found", "OpenFile", "Reach", "choose_number", "reach_own"]
