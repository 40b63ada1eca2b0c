"""The end of a process in which a trace is on its way."""

from __future__ import annotations

import os
import re
import sys
import time

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from .library import Library

# Kineto names the file so while it is not whole, and keeps it open from the request on, even when
# somebody has removed it. Jobs keep files of their own open that end in ``.tmp``.
_PART = r"_%d(?:\.pt\.trace)?\.json\.tmp(?: \(deleted\))?"
# The exit waits for this work anyway, but would leave an empty file behind.
_WRITING_S = 60.0
_LOOK_S = 0.02
# Kineto's thread looks once a second at what it was asked, and up to a quarter of one later.
_BEGIN_S = 3.0
# Where other threads use less of a core than this in that time, nobody writes.
_WORKS_S, _IDLE_S = 0.2, 4.0
_DELETED = " (deleted)"


def list_parts() -> set[str]:
    """Return the files of traces that Kineto has begun with, and keeps open."""
    is_part = re.compile(".*" + _PART % os.getpid(), re.DOTALL).fullmatch
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if is_part(path):
            found.add(path.removesuffix(_DELETED))
    return found


def end_trace(
    library: Library,
    *,
    was_collecting: bool,
    is_asked: bool,
    dropped: frozenset[str],
    end_ns: int = 0,
) -> None:
    """Give up a trace that is to come or being collected, and wait for one that is being written.

    To give that up would end the process, too. ``is_asked`` says that the agent waits for a trace,
    whose file may have a name of any form, ``dropped`` are the files of those that were given up.
    ``end_ns`` is when a window that was asked for ends, wall-clock; 0 for iterations.
    """
    is_to_come = not was_collecting and time.time_ns() < end_ns
    if is_to_come:
        _wait_until_begun(library, dropped)
    has_part = not list_parts() <= dropped
    is_collected = library.is_collecting and (has_part or is_asked)
    if is_collected or is_to_come or (has_part and not was_collecting):
        with library.silence():
            _cancel()
    elif has_part:
        _wait_until_written(dropped)


def _wait_until_begun(library: Library, dropped: frozenset[str]) -> None:
    """Wait until Kineto has taken on what it was asked: it would after a trace was given up."""
    deadline_s = time.monotonic() + _BEGIN_S
    while time.monotonic() < deadline_s:
        if library.is_collecting or not list_parts() <= dropped:
            return
        time.sleep(_LOOK_S)


def _wait_until_written(dropped: frozenset[str]) -> None:
    """Wait until no file is open, or nobody works on one: Kineto uses a core for it."""
    deadline_s = time.monotonic() + _WRITING_S
    used_s, since_s = _others_s(), time.monotonic()
    while not list_parts() <= dropped and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        if _others_s() - used_s > _WORKS_S:
            used_s, since_s = _others_s(), time.monotonic()
        elif time.monotonic() - since_s > _IDLE_S:
            return


def _others_s() -> float:
    """Return the CPU time of all threads but this one."""
    return time.process_time() - time.thread_time()


def _cancel() -> None:
    """Begin a trace of the job's own kind: Kineto drops the one on demand for it."""
    import warnings

    profiler: Any = sys.modules["torch.profiler"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
            pass
