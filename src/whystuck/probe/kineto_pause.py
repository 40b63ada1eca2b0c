"""Noting nothing while Kineto takes a trace on demand down.

It does so in a thread of its own, and waits for nobody. A thread of the job that is about to note
an op then writes to what has been cleared: the process dies of SIGSEGV or SIGABRT (pytorch issues
185741 and 187483, torch 2.13). Where ranks share cores that comes to one of some dozen traces. So
what the agent has asked for has an end that we know, and from there on the thread that trains
notes nothing until Kineto is done.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

    from .kineto_library import Library

_NS_A_SECOND = 1_000_000_000
_MAX_PLAN_BYTES = 100
_FIELDS = 3
_MAX_PAUSE_S = 30.0
_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Plan:
    """When a trace is to end: at a time (wall-clock, in ns), or after some iterations.

    ``end_count`` is how many steps the rank has made by then. 0 is none, or not known.
    """

    def __init__(self, end_ns: int, iterations: int, end_count: int) -> None:
        """Take what the agent says."""
        self.words = (end_ns, iterations, end_count)
        self.end_ns, self.iterations, self.end_count = end_ns, iterations, end_count

    def find_end(self, count: int) -> int:
        """Return how many steps are made when it is over, 0 for a window of time.

        Args:
            count: How many were when it was first seen to be taken.
        """
        # A rank that was told too late begins where nobody knows.
        is_as_told = count < self.end_count
        return self.end_count if is_as_told or not self.iterations else count + self.iterations


def read_plan(paths: set[str]) -> Plan | None:
    """Return what lies in one of some files, None when nothing of use does."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                words = file.read(_MAX_PLAN_BYTES).split()
            numbers = [int(word) for word in words]
        except (OSError, ValueError):
            continue
        if len(numbers) == _FIELDS and min(numbers) >= 0:
            return Plan(*numbers)
    return None


def is_same(one: Plan | None, other: Plan | None) -> bool:
    """Tell whether two plans say the same, or neither is there."""
    return (one and one.words) == (other and other.words)


class Pause:
    """Where and since when nothing is noted; each thread has a switch of its own."""

    def __init__(self, library: Library, read: Callable[[], Plan | None]) -> None:
        """Begin with all threads as they are; ``read`` returns the plan of the trace under way."""
        self._library, self._read = library, read
        self._plan: Plan | None = None
        self._is_seen = False
        self._end_count = 0
        # By the number of a thread: since when (monotonic, in s).
        self._paused: dict[int, float] = {}
        self._watched_ns = 0
        self._given_up = (0, 0, 0)
        # What the interpreter may still call must not go away.
        self._calls: dict[str, object] = {}
        os.register_at_fork(after_in_child=self.go_on)

    def after_step(self, count: int, *, is_collecting: bool) -> None:
        """Pause where a trace is at its end, and go on after it; called by the thread that steps.

        Args:
            count: How many steps it has made, as Kineto counts them.
            is_collecting: Whether a trace is being taken.
        """
        if not is_collecting:
            self._is_seen = False
            self.go_on()
            return
        if not self._is_seen:
            self._is_seen, self._plan = True, self._read()
            self._end_count = 0 if self._plan is None else self._plan.find_end(count)
        plan = self._plan
        if plan is None:
            self.go_on()
        elif 0 < self._end_count <= count or 0 < plan.end_ns <= time.time_ns():
            self.pause()

    def look(self, plan: Plan | None) -> None:
        """Do what no step may do in time; called once a second by a thread of the probe."""
        if plan is not None and plan.words == self._given_up:
            plan = None
        if self._is_seen and not is_same(plan, self._plan):
            # That trace is over; another one may have come. What looks at ops without one is not
            # ours, and sees them all.
            self._is_seen, self._plan = plan is None, None
        if self._paused and self._is_over(plan):
            # The rank makes no step any more, or it is not Kineto who looks.
            self._call_in_main(self.go_on)
        elif plan is not None and plan.end_ns and plan.end_ns != self._watched_ns:
            self._watched_ns = plan.end_ns
            name = "whystuck-end"
            threading.Thread(target=self._watch, args=(plan,), name=name, daemon=True).start()

    def pause(self) -> None:
        """Note nothing more in this thread, if it notes anything."""
        own = threading.get_ident()
        if own not in self._paused and self._library.is_noting:
            self._paused[own] = time.monotonic()
            self._library.set_noting(is_on=False)

    def go_on(self) -> None:
        """Note what this thread does, if it was us who stopped that."""
        if self._paused and threading.get_ident() in self._paused:
            del self._paused[threading.get_ident()]
            self._library.set_noting(is_on=True)

    def _is_over(self, plan: Plan | None) -> bool:
        since_s = min(self._paused.values(), default=time.monotonic())
        if plan is not None and time.monotonic() - since_s > _MAX_PAUSE_S:
            self._given_up, self._plan = plan.words, None
            return True
        return plan is None or not self._library.is_collecting

    def _watch(self, plan: Plan) -> None:
        """Pause the main thread at the end of a window, in whatever step it is."""
        try:
            time.sleep(max(0.0, (plan.end_ns - time.time_ns()) / _NS_A_SECOND))
            if self._library.is_collecting:
                self._call_in_main(self._pause_in_trace)
        except Exception:  # a trace may end less well
            return

    def _pause_in_trace(self) -> None:
        if self._library.is_collecting:
            self.pause()

    def _call_in_main(self, function: Callable[[], None]) -> None:
        """Let the interpreter call it in the main thread, between two of its instructions."""

        def call(_: object) -> int:
            try:
                function()
            except Exception:  # a trace may end less well
                return 0
            return 0

        made = self._calls.setdefault(function.__name__, _PENDING(call))
        ctypes.pythonapi.Py_AddPendingCall(made, None)
