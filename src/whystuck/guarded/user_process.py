"""A process with the rights of a user, through which one with more rights works on his files.

Whatever the user changes meanwhile, it reaches nothing that he does not reach himself. It may hang,
as on a file system of his own, and is killed then.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from whystuck.guarded.opening import NO_OPENAT2, GuardError, can_open_below
from whystuck.guarded.processes import Owner

TIMEOUT_S: Final = 30.0
"""How long one answer may take; a piece of a file is read in moments."""
_PACKAGES: Final = str(Path(__file__).parents[2])
# It reads its program as we do, and takes on the user's rights then: he may not reach Python.
_START: Final = (
    "import sys; sys.path.append(sys.argv[1]);"
    " from whystuck.guarded.user_process_main import main; main()"
)
_MAX_LINE: Final = 1 << 16
_KEPT: Final = ("LD_LIBRARY_PATH",)  # Python itself may need it


class UserProcess:
    """A process with the rights of a user; a context manager.

    Args:
        owner: Whose rights it has.
        root: A descriptor of the root of the paths that it opens.
        timeout_s: How long one answer may take.

    Raises:
        GuardError: It cannot have these rights, or this kernel has no way to open paths safely.
    """

    def __init__(self, owner: Owner, root: int, *, timeout_s: float = TIMEOUT_S) -> None:
        if not can_open_below():
            raise GuardError(NO_OPENAT2)
        if os.geteuid() not in {0, owner.uid}:
            raise GuardError(f"it belongs to uid {owner.uid}, whose rights only root can take on")
        ours, theirs = socket.socketpair()
        ours.settimeout(timeout_s)
        groups = ",".join(map(str, owner.groups))
        numbers = [theirs.fileno(), root, owner.uid, owner.gid]
        try:
            self._process = subprocess.Popen(
                [*_python(), *map(str, numbers), groups],
                pass_fds=(theirs.fileno(), root),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
                cwd="/",
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._stream = ours.makefile("rwb")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()

    def close(self) -> None:
        """End it, and what it does."""
        with suppress(OSError):
            self._stream.close()
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def ask(self, do: str, data: bytes | memoryview = b"", **fields: object) -> dict[str, Any]:
        """Ask for something, and return the answer.

        Args:
            do: What: a name that `whystuck.guarded.user_process_main` knows.
            data: Bytes that go with it.
            **fields: What it takes.

        Raises:
            GuardError: It refuses, or does not answer.
            OSError: It cannot be done.
        """
        try:
            with suppress(BrokenPipeError):  # it may have said why it ended
                self._stream.write(json.dumps({"do": do, **fields}).encode() + b"\n")
                self._stream.write(data)
                self._stream.flush()
            line = self._stream.readline(_MAX_LINE)
        except TimeoutError:
            raise GuardError("its file system does not answer") from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise GuardError("the process that looks at it for us has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            if answer.get("is_guard"):
                raise GuardError(answer["text"], answer["error"])
            raise OSError(answer["error"], answer["text"])
        return answer

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a piece of the open file; raises as `ask` does."""
        told = self.ask("read", offset=offset, size=size_bytes)["size"]
        try:
            data = self._stream.read(told)
        except TimeoutError:
            raise GuardError("its file system does not answer") from None
        if len(data) != told:
            raise GuardError("the process that looks at it for us has ended")
        return data


def _python() -> list[str]:
    """Return how one is started; what is behind it are its arguments."""
    return [sys.executable, "-I", "-S", "-c", _START, _PACKAGES]


class UserFileReader(io.RawIOBase):
    """The file that a process has open, as a stream; it ends where it did when it was opened."""

    def __init__(self, process: UserProcess, size_bytes: int) -> None:
        super().__init__()
        self._process, self._size_bytes, self._offset = process, size_bytes, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size_bytes}[whence]
        self._offset = max(0, base + offset)
        return self._offset

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever can be written to
        """Read a piece, and return its size; raises as `UserProcess.ask` does."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size_bytes - self._offset))
        data = self._process.read(self._offset, wanted) if wanted else b""
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)


class UserFileWriter(io.RawIOBase):
    """The file that a process makes, as a stream."""

    def __init__(self, process: UserProcess) -> None:
        super().__init__()
        self._process, self._offset = process, 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how much was written."""
        return self._offset

    def write(self, data: Any) -> int:  # noqa: ANN401 - whatever holds bytes
        """Write a piece; raises as `UserProcess.ask` does."""
        view = memoryview(data).cast("B")
        self._process.ask("write", view, size=len(view))
        self._offset += len(view)
        return len(view)


__all__ = ["UserFileReader", "UserFileWriter", "UserProcess"]
