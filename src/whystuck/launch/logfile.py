"""A log with the capture time of each line, of bounded size, that never fails its writer."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path

MAX_LOG_BYTES = 64 << 20
_MAX_LINE_BYTES = 1 << 16


class LogFile:
    """Lines of the form ``2026-01-31T12:00:00.123456Z out text``; two files of a bounded size.

    When the file cannot be written any more (disk full), writing stops and ``problem`` says why.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` at the first line."""
        self.path = path
        self.problem = ""
        self._file: BufferedWriter | None = None
        self._size = 0
        self._rest: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def write(self, stream: str, data: bytes) -> None:
        """Add bytes of one stream (``out`` or ``err``); lines are written when complete."""
        with self._lock:
            lines = (self._rest.get(stream, b"") + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE_BYTES:
                lines.append(rest)
                rest = b""
            self._rest[stream] = rest
            self._write_lines(stream, lines)

    def flush(self) -> None:
        """Write incomplete lines too."""
        with self._lock:
            for stream, rest in self._rest.items():
                if rest:
                    self._write_lines(stream, [rest])
            self._rest.clear()

    def move(self, path: Path) -> None:
        """Give the log another name, the part before it too; what comes goes there as well."""
        with self._lock:
            for old, new in ((self.path, path), (_older(self.path), _older(path))):
                with suppress(OSError):
                    if old.exists():
                        old.replace(new)
            self.path = path

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        with self._lock:
            self._close()

    def _write_lines(self, stream: str, lines: list[bytes]) -> None:
        if self.problem or not lines:
            return
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        prefix = f"{stamp} {stream} ".encode()
        text = b"".join(prefix + line.rstrip(b"\r") + b"\n" for line in lines)
        try:
            if self._file is None or self._size + len(text) > MAX_LOG_BYTES:
                self._open()
            assert self._file is not None  # noqa: S101 - just opened
            self._file.write(text)
            self._file.flush()
            self._size += len(text)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # On a full disk, what could not be written is tried once more here.
            with suppress(OSError):
                file.close()

    def _open(self) -> None:
        if self._file is not None:
            self._close()
            self.path.replace(_older(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        self._size = 0


def _older(path: Path) -> Path:
    return path.with_suffix(".1.txt")
