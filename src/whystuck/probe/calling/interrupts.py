"""Errors that a signal handler of the job raises while code of ours runs: they are the job's.

Python runs a handler between any two instructions of the main thread, also of ours. What it raises
there, such as the end of a time limit, must not be taken for a fault of the probe.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import FrameType, TracebackType


def let_through(error: Exception) -> None:
    """Raise an error once more where a signal handler has raised it; else do nothing."""
    if find_handler(error) is not None:
        raise error


def find_handler(error: BaseException) -> TracebackType | None:
    """Return where the traceback of an error enters a signal handler; None where it does not."""
    trace = error.__traceback__
    while trace is not None and not _is_handler(trace.tb_frame):
        trace = trace.tb_next
    return trace


def _is_handler(frame: FrameType) -> bool:
    """Tell a handler by its arguments: it is given the frame that it interrupts."""
    interrupted, code = frame.f_back, frame.f_code
    if interrupted is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        if value is interrupted:
            return True
        if type(value) is tuple and any(one is interrupted for one in value):
            return True
    return False


# Of `code.co_flags`.
_VARARGS, _VARKEYWORDS = 4, 8
