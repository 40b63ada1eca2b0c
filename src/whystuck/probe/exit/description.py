"""An exception as plain values; imported when there is one."""

from __future__ import annotations

import os
import threading
import time
import traceback

from ..calling.interrupts import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_MAX_FRAMES = 100


def describe(value: BaseException, trace: TracebackType | None) -> dict[str, object]:
    """Describe an exception, frames innermost first, as plain values."""
    # The lines themselves are not looked up: the file may be on a disk that does not answer.
    frames = traceback.StackSummary.extract(
        traceback.walk_tb(trace), limit=-_MAX_FRAMES, lookup_lines=False
    )
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return {
        "pid": os.getpid(),
        "type": prefix + kind.__qualname__,
        "message": _read_message(value),
        "thread": threading.current_thread().name,
        "is_main_thread": threading.current_thread() is threading.main_thread(),
        "time_ns": time.time_ns(),
        "frames": [
            {"name": frame.name, "filename": frame.filename, "line": frame.lineno or 0}
            for frame in reversed(frames)
        ],
    }


def _read_message(value: BaseException) -> str:
    """Return the text of an error; it may be made by code of the job, which may fail."""
    try:
        return str(value)[:4000]
    except Exception as error:  # the kind of the error, and its line, are known all the same
        let_through(error)
        return ""
