"""The log of an agent: lines on stderr or in a file of bounded size, never more than it can bear.

It never fails its writer: what cannot be written is counted, and said once it can be again.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.guarded.own_links import follow_own_links, is_of_others
from whystuck.safe_text.escaping import show_line

LOGGER = "whystuck"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BURST_LINES = 500
_LINES_PER_S = 10.0
_MAX_LINE_CHARS = 4000


class AgentLog:
    """Where what is logged under ``whystuck`` and by asyncio goes.

    A file and the one before it share ``max_bytes``. `set_file` also opens the same file anew, so
    that others can rotate it.
    """

    def __init__(self) -> None:
        """Write to stderr until `set_file`."""
        self._handler = _prepare(_StderrHandler())
        self._loggers = [logging.getLogger(name) for name in (LOGGER, "asyncio")]
        for one in self._loggers:
            one.setLevel(logging.INFO if one.name == LOGGER else logging.WARNING)
            one.addHandler(self._handler)
            one.propagate = False

    def set_file(self, path: str, max_bytes: int) -> None:
        """Write to a file, or to stderr where ``path`` is empty.

        Raises:
            UsageError: The file cannot be written; the log goes on where it was.
        """
        handler: logging.Handler = _StderrHandler()
        if path:
            try:
                handler = _BoundedFile(Path(path), max_bytes)
            except OSError as error:
                raise UsageError(
                    f"the log {path} cannot be written: {error.strerror or error}",
                    hint="give a file in a folder that this user can write to",
                ) from error
        self._replace(_prepare(handler))

    def close(self) -> None:
        """Flush and close; what is logged afterwards goes where it went before."""
        self._replace(logging.NullHandler())
        for one in self._loggers:
            one.removeHandler(self._handler)
            one.propagate = True

    def _replace(self, handler: logging.Handler) -> None:
        old, self._handler = self._handler, handler
        for one in self._loggers:
            one.addHandler(handler)
            one.removeHandler(old)
        old.close()


class _Quiet(logging.Handler):
    """Keeps a handler from failing or printing when its file or stream cannot be written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Let the line go: the disk is full, or nobody reads any more."""

    def close(self) -> None:
        """Close, where the last lines cannot be written either."""
        with suppress(OSError):
            super().close()


class _StderrHandler(_Quiet, logging.StreamHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__(sys.stderr)


class _BoundedFile(_Quiet, RotatingFileHandler):
    def __init__(self, path: Path, max_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=max_bytes // 2, backupCount=1, errors="replace")

    def _open(self) -> TextIOWrapper:
        """Open it for its owner alone, and without a way to another user's file or pipe."""
        path = follow_own_links(Path(self.baseFilename))
        # A link of /proc, as behind /dev/stderr, leads to what is open already.
        follows = 0 if path.is_relative_to("/proc") else os.O_NOFOLLOW
        if is_of_others(path):
            raise OSError(errno.EPERM, "another user has laid a link or pipe in its place")
        descriptor = os.open(path, _APPEND | follows, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace")


class _RateLimit(logging.Filter):
    """Lets a burst of lines through, then some a second, and says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._room = float(_BURST_LINES)
        self._seen_s = time.monotonic()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        self._room = min(_BURST_LINES, self._room + (now_s - self._seen_s) * _LINES_PER_S)
        self._seen_s = now_s
        if self._room < 1:
            self._left_out += 1
            return False
        self._room -= 1
        if self._left_out:
            record.msg = f"({self._left_out} lines left out) {record.msg}"
            self._left_out = 0
        return True


class _LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z info text``: one line a record, safe to show on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        # Names of commands and files come from jobs, and may hold anything.
        safe = show_line(text.replace("\n", " | "), _MAX_LINE_CHARS)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return f"{stamp} {record.levelname.lower()} {safe}"


def _prepare(handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(_LineFormatter())
    handler.addFilter(_RateLimit())
    return handler
