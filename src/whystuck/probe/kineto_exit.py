"""The end of a process in which a trace is on its way."""

from __future__ import annotations

import os
import re
import sys
import time

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from .kineto_library import Library

# Kineto names the file so while it is not whole, and keeps it open from the request on, even when
# somebody has removed it. Jobs keep files of their own open that end in ``.tmp``.
_PART = r"_%d(?:\.pt\.trace)?\.json\.tmp(?: \(deleted\))?"
# The exit waits for this work anyway, but would leave an empty file behind.
_WRITING_S = 60.0
_LOOK_S = 0.02


def in_flight() -> bool:
    """Tell whether Kineto has begun with a trace and not ended it: it keeps the file open."""
    is_part = re.compile(".*" + _PART % os.getpid(), re.DOTALL).fullmatch
    for name in os.listdir("/proc/self/fd"):
        try:
            if is_part(os.readlink(f"/proc/self/fd/{name}")):
                return True
        except OSError:
            continue
    return False


def end_trace(library: Library, *, was_collecting: bool, is_asked: bool) -> None:
    """Give up a trace that is to come or being collected, and wait for one that is being written.

    To give that up would end the process, too. ``is_asked`` says that the agent waits for a trace,
    whose file may have a name of any form.
    """
    has_part = in_flight()
    is_collected = library.is_collecting and (has_part or is_asked)
    if is_collected or (has_part and not was_collecting):
        with library.silence():
            _cancel()
    elif has_part:
        deadline_s = time.monotonic() + _WRITING_S
        while in_flight() and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)


def _cancel() -> None:
    """Begin a trace of the job's own kind: Kineto drops the one on demand for it."""
    import warnings

    profiler: Any = sys.modules["torch.profiler"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
            pass
