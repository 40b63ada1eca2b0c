"""A log with the capture time of each line, of bounded size, that never fails its writer."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO

MAX_LOG_BYTES = 64 << 20
TAIL_BYTES = 256 << 10
_MAX_LINE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20


class LogFile:
    """Lines of the form ``2026-01-31T12:00:00.123456Z out text``; two files of a bounded size.

    When the file cannot be written any more (disk full), writing stops and ``problem`` says why.
    Its end is kept in memory too, so that nobody who wants to read it waits for a disk. All of it
    is read by its descriptor: on a shared file system, that looks up no name.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` at the first line."""
        self.path = path
        self.problem = ""
        self._file: FileIO | None = None
        self._old: FileIO | None = None
        self._size = 0
        self._lock = threading.Lock()
        # Of the text that is not in the file yet; not held while anything is written.
        self._text_lock = threading.Lock()
        self._rest: dict[str, bytes] = {}
        self._tail = bytearray()

    def write(self, stream: str, data: bytes) -> None:
        """Add bytes of one stream (``out`` or ``err``); lines are written when complete."""
        self.put(self.take(stream, data))

    def flush(self) -> None:
        """Write incomplete lines too."""
        self.put(self.take_rest())

    def take(self, stream: str, data: bytes) -> bytes:
        """Add bytes; return the lines for `put` that are complete now. No file is touched."""
        with self._text_lock:
            lines = (self._rest.get(stream, b"") + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE_BYTES:
                lines.append(rest)
                rest = b""
            self._rest[stream] = rest
            return self._stamp(stream, lines)

    def take_rest(self) -> bytes:
        """Return the incomplete lines for `put`."""
        with self._text_lock:
            left, self._rest = self._rest, {}
            return b"".join(self._stamp(stream, [rest]) for stream, rest in left.items() if rest)

    def put(self, text: bytes) -> None:
        """Write lines of `take` to the file."""
        with self._lock:
            self._write(text)

    def move(self, path: Path) -> None:
        """Give the log another name, the part before it too; what comes goes there as well."""
        with self._lock:
            for old, new in ((self.path, path), (_older(self.path), _older(path))):
                with suppress(OSError):
                    if old.exists():
                        old.replace(new)
            self.path = path

    def read_tail(self, most_bytes: int) -> bytes:
        """Return the end of what was taken, of at most 256 KiB."""
        with self._text_lock:
            return bytes(self._tail[-most_bytes:])

    def forget_tail(self) -> None:
        """Let go of the end in memory: nobody will ask for it any more."""
        with self._text_lock:
            self._tail.clear()

    def copy_to(self, folder: Path) -> int:
        """Copy the log, and the part before it, below a folder; return its size; raises OSError."""
        size = 0
        with self._lock:
            if self._old is not None:
                size += _copy(self._old, folder / _older(self.path).name)
            with self._opened() as file:
                return size + _copy(file, folder / self.path.name)

    def _opened(self) -> AbstractContextManager[IO[bytes]]:
        return self.path.open("rb") if self._file is None else nullcontext(self._file)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        with self._lock:
            for file in (self._old, self._file):
                _close(file)
            self._old = self._file = None

    def _stamp(self, stream: str, lines: list[bytes]) -> bytes:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        prefix = f"{stamp} {stream} ".encode()
        text = b"".join(prefix + line.rstrip(b"\r") + b"\n" for line in lines)
        self._tail += text
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        return text

    def _write(self, text: bytes) -> None:
        if self.problem or not text:
            return
        try:
            if self._file is None or self._size + len(text) > MAX_LOG_BYTES:
                self._open()
            assert self._file is not None  # noqa: S101 - just opened
            left = memoryview(text)
            while left:
                left = left[self._file.write(left) :]
            self._size += len(text)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def _open(self) -> None:
        if self._file is not None:
            _close(self._old)
            self._old, self._file = self._file, None
            self.path.replace(_older(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)  # with a buffer, each flush seeks
        self._size = 0


def _close(file: IO[bytes] | None) -> None:
    if file is not None:
        with suppress(OSError):
            file.close()


def _copy(source: IO[bytes], target: Path) -> int:
    size = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        while piece := os.pread(source.fileno(), _PIECE_BYTES, size):
            out.write(piece)
            size += len(piece)
    return size


def _older(path: Path) -> Path:
    return path.with_suffix(".1.txt")
