"""Writing to stdout, which may be a pipe that its reader has closed."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from whystuck.evidence.errors import UsageError


def write_stdout(data: bytes) -> None:
    """Write ``data`` to stdout. A reader that has gone away, as in ``| head``, is no error."""
    try:
        sys.stdout.flush()
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:
            sys.stdout.write(data.decode())
        else:
            buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as problem:
        silence_stdout()
        raise UsageError(
            f"cannot write to stdout: {problem.strerror or problem}",
            hint="is the disk full? `-o FILE` writes the report elsewhere",
        ) from problem


def encode_for_stdout(text: str) -> bytes:
    """Encode ``text`` as stdout wants it; letters it does not have become ``?``."""
    return text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "replace")


def silence_stdout() -> None:
    """Point stdout at nothing, so that the flush at interpreter exit cannot fail either."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def open_missing_streams() -> None:
    """Point at nothing what a shell has closed, as by ``>&-``: Python has no stream there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def flush_streams(code: int) -> int:
    """Flush while an error can still be handled, and return ``code``."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence_stdout()
        except (OSError, ValueError):
            continue
    return code
