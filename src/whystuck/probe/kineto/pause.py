"""Noting nothing while Kineto takes a trace on demand down.

It does so in a thread of its own, and waits for nobody. A thread of the job that is about to note
an op then writes to what has been cleared: the process dies of SIGSEGV or SIGABRT (pytorch issues
185741 and 187483, torch 2.13). Where ranks share cores that comes to one of some dozen traces. So
what the agent has asked for has an end that we know, and from there on the thread that trains
notes nothing until Kineto is done.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from ..calling.main_call import MainCall
from ..threads import OwnThread
from . import folder

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

    from .library import Library

_NS_A_SECOND = 1_000_000_000
_MAX_PLAN_BYTES = 100
_FIELDS = 3
_MAX_PAUSE_S = 30.0
# A clock may be set, and a plan be taken back, while its end is waited for.
_LOOK_S = 1.0
_RETRY_S = 0.01
_RETRIES = 200
_SETTLING_S = 5.0


class Plan:
    """When a trace is to end: at a time (wall-clock, in ns), or after some iterations.

    ``end_count`` is how many steps the rank has made by then. 0 is none, or not known. ``left_ns``
    is when it was told; a later trace may be told the same.
    """

    def __init__(self, end_ns: int, iterations: int, end_count: int, left_ns: int = 0) -> None:
        """Take what the agent says."""
        self.words = (end_ns, iterations, end_count, left_ns)
        self.end_ns, self.iterations, self.end_count = end_ns, iterations, end_count

    def find_end(self, count: int) -> int:
        """Return how many steps are made when it is over, 0 for a window of time.

        Args:
            count: How many were when it was first seen to be taken.
        """
        # A rank that was told too late begins where nobody knows.
        is_as_told = count <= self.end_count - self.iterations
        return self.end_count if is_as_told or not self.iterations else count + self.iterations


def read_plan(paths: set[str]) -> Plan | None:
    """Return what lies in one of some files, None when nothing of use does."""
    for path in paths:
        try:
            with open(folder.open_mark(path), "rb") as file:
                words = file.read(_MAX_PLAN_BYTES).split()
                left_ns = os.fstat(file.fileno()).st_mtime_ns
            numbers = [int(word) for word in words]
        except (OSError, ValueError):
            continue
        if len(numbers) == _FIELDS and min(numbers) >= 0:
            return Plan(numbers[0], numbers[1], numbers[2], left_ns)
    return None


def is_same(one: Plan | None, other: Plan | None) -> bool:
    """Tell whether two plans are the same, or neither is there."""
    return (one and one.words) == (other and other.words)


class Pause:
    """Where and since when nothing is noted; each thread has a switch of its own.

    Nothing is switched in a backward pass: autograd sets the switch as it was when that is over.
    """

    def __init__(self, library: Library, read: Callable[[], Plan | None]) -> None:
        """Begin with all threads as they are; ``read`` returns the plan of the trace under way."""
        self._library, self._read = library, read
        # What is under way in the eyes of the thread that steps, and of the one that looks.
        self._plan: Plan | None = None
        self._known: Plan | None = None
        self._is_seen = self._was_collecting = False
        self._end_count = 0
        # By the number of a thread, monotonic, in s: since when it notes nothing, or all again.
        self._paused: dict[int, float] = {}
        self._settling: dict[int, float] = {}
        self._watched: Plan | None = None
        self._given_up: Plan | None = None
        self._ended: Plan | None = None
        self._pausing = MainCall(self._pause_at_end)
        self._resuming = MainCall(self.go_on)
        os.register_at_fork(after_in_child=self._leave_child)

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
            self._is_seen, self._plan = True, self._keep(self._read())
            self._known = self._plan
            self._end_count = 0 if self._plan is None else self._plan.find_end(count)
        plan = self._plan
        if plan is None:
            self.go_on()
            return
        is_over = 0 < self._end_count <= count or 0 < plan.end_ns <= time.time_ns()
        if not is_over:
            self.go_on()
        elif not self.pause():
            self._start_watch(plan)

    def look(self, plan: Plan | None) -> None:
        """Do what no step may do in time; called once a second by a thread of the probe."""
        is_collecting = self._library.is_collecting
        was_collecting, self._was_collecting = self._was_collecting, is_collecting
        is_new, self._known = not is_same(plan, self._known), plan
        is_foreign = was_collecting and is_collecting and not is_same(plan, self._plan)
        if is_new and is_foreign and plan is not None:
            # What looks at ops came before the trace, is not ours, and sees them all.
            self._given_up = plan
        plan = self._keep(plan)
        if not is_collecting or not is_same(plan, self._plan):
            # The trace that was under way is over; another one may have come.
            self._is_seen, self._plan = is_collecting and plan is None, None
        self._forget_dead()
        if (self._paused or self._settling) and self._is_over(plan, is_collecting=is_collecting):
            # The rank makes no step any more, or it is not Kineto who looks.
            self._resuming.queue()
        if plan is not None and plan.end_ns and not is_same(plan, self._given_up):
            self._start_watch(plan)

    def give_up(self) -> None:
        """Leave the trace under way alone, as one that the job takes itself has the right of way.

        Called by the thread that takes it.
        """
        self._given_up = self._read()
        self._is_seen, self._plan, self._ended = True, None, None
        self.go_on()
        if self._paused:
            self._resuming.queue()

    def pause(self) -> bool:
        """Note nothing more in this thread, if it notes anything; False where it must be later."""
        own, library = threading.get_ident(), self._library
        if not library.is_noting:
            return True
        if library.is_in_backward:
            return False
        self._paused.setdefault(own, time.monotonic())
        self._settling.pop(own, None)
        library.set_noting(is_on=False)
        return True

    def go_on(self) -> None:
        """Note what this thread does, if it was us who stopped that."""
        if not (self._paused or self._settling):
            return
        own, now_s = threading.get_ident(), time.monotonic()
        if self._library.is_in_backward:
            return
        if own in self._paused:
            del self._paused[own]
            self._settling[own] = now_s
        elif own not in self._settling:
            return
        elif now_s - self._settling[own] > _SETTLING_S:
            del self._settling[own]
            return
        # Whoever keeps the state of a thread for later may have set it as it was in the pause.
        if not self._library.is_noting:
            self._library.set_noting(is_on=True)

    def _keep(self, plan: Plan | None) -> Plan | None:
        return None if is_same(plan, self._given_up) else plan

    def _is_over(self, plan: Plan | None, *, is_collecting: bool) -> bool:
        since_s = min(self._paused.values(), default=time.monotonic())
        if plan is not None and time.monotonic() - since_s > _MAX_PAUSE_S:
            self._given_up, self._plan = plan, None
            return True
        return plan is None or not is_collecting

    def _forget_dead(self) -> None:
        if self._paused or self._settling:
            living = sys._current_frames()
            for table in (self._paused, self._settling):
                for thread in list(table):  # at once, as other threads change it
                    if thread not in living:
                        table.pop(thread, None)

    def _start_watch(self, plan: Plan) -> None:
        """Let a thread pause the main thread at the end of a trace, once for each."""
        if not is_same(plan, self._watched):
            self._watched = plan
            OwnThread(lambda: self._watch(plan), "whystuck-end").start()

    def _watch(self, plan: Plan) -> None:
        try:
            while (rest_s := (plan.end_ns - time.time_ns()) / _NS_A_SECOND) > 0:
                time.sleep(min(rest_s, _LOOK_S))
                if not self._is_under_way(plan):
                    return
            self._ended = plan
            main, until_s = threading.main_thread().ident, time.monotonic() + _MAX_PAUSE_S
            while self._is_under_way(plan) and self._library.is_collecting:
                if main not in self._paused:
                    self._pausing.queue()
                time.sleep(_RETRY_S)
                if time.monotonic() > until_s:
                    break
            self._ended = None
            for _ in range(_RETRIES):
                if main not in self._paused or self._library.is_collecting:
                    return
                self._resuming.queue()
                time.sleep(_RETRY_S)
        except Exception:  # a trace may end less well
            return

    def _is_under_way(self, plan: Plan) -> bool:
        return is_same(plan, self._known) and not is_same(plan, self._given_up)

    def _pause_at_end(self) -> None:
        """Pause the main thread, in whatever step it is."""
        if self._ended is not None and self._library.is_collecting:
            self.pause()

    def _leave_child(self) -> None:
        """Note everything in a forked child, which has this one thread and no trace."""
        self._ended = self._plan = None
        if threading.get_ident() in self._paused:
            self._library.set_noting(is_on=True)
        self._paused.clear()
        self._settling.clear()
