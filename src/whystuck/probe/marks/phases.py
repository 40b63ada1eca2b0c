"""The phases of a step, as the thread that trains goes through them.

One phase is open at a time. What begins inside another one belongs to that; only an optimizer step
is interrupted by what its closure does, so that no two phases of a rank overlap.
"""

from __future__ import annotations

import threading
import time

from .. import progress
from .ring import BACKWARD, FORWARD, KINDS, OPTIMIZER, STEP, SWITCHED, MarkRing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .mirror import Mirror

_COUNTS = progress.COUNTS
_NONE = -1
_NOTHING = (_NONE, 0, 0, 0, 0)
# A phase in which so many steps have ended is over, and its end was not seen: a signal handler of
# the job raised in between.
_MAX_STEPS_INSIDE = 2
_now_ns = time.monotonic_ns
_thread_id = threading.get_ident


class Phases:
    """Which kinds are marked, and the mark that is open; no method raises."""

    def __init__(self, ring: MarkRing) -> None:
        self.ring = ring
        # Shows marks to other tools, where that was asked for.
        self.mirror: Mirror | None = None
        self.on = [False] * KINDS
        # False in a forked child, which shares the file with us.
        self.is_open = True
        # Marks tell of the thread that made the last step, of the main thread before that.
        self.thread = threading.main_thread().ident
        # Kind, name, step and begin of what is open, and its number. One value, as another thread
        # may have become the one that trains between any two instructions.
        self._open: tuple[int, int, int, int, int] = _NOTHING
        # The name of an optimizer step that waits for its closure; 0 when none does.
        self._waiting = 0
        self._step_begin_ns = 0

    def is_free(self, kind: int) -> bool:
        """Return whether :meth:`enter` would begin a phase of a kind."""
        return self.on[kind] and self._open[0] in (_NONE, OPTIMIZER) and _thread_id() == self.thread

    def enter(self, kind: int, name: int) -> int:
        """Begin a phase; return its number, 0 when it is not marked."""
        if not self.on[kind] or _thread_id() != self.thread:
            return 0
        inside = self._open[0]
        if inside >= 0:
            if inside != OPTIMIZER:
                return 0
            self._interrupt(kind)
        return self._begin(kind, name)

    def leave(self, number: int) -> None:
        """End the phase of a number that :meth:`enter` returned, which is not 0."""
        kind, name, step, begin_ns, opened = self._open
        if number != opened:
            return  # its end comes late, from another thread
        self._open = _NOTHING
        self.ring.end(number, kind, name, step, begin_ns)
        if self.mirror is not None:
            self.mirror.end(number)
        if self._waiting:
            name, self._waiting = self._waiting, 0
            self._begin(OPTIMIZER, name)

    def begin_optimizer(self, name: str) -> None:
        """Begin an optimizer step; one that raised is still open."""
        if self._open[0] == OPTIMIZER:
            self._forget()
        # A forked child learns no name: what guards them may be held by a thread it does not have.
        if self.on[OPTIMIZER]:
            self.enter(OPTIMIZER, self.ring.learn_name(name))

    def end_optimizer(self) -> None:
        """End an optimizer step."""
        kind, _, _, _, number = self._open
        if kind == OPTIMIZER and _thread_id() == self.thread:
            self.leave(number)

    def end_step(self) -> None:
        """Mark the step that ends now, and begin the next one."""
        self.thread = _thread_id()
        now_ns = _now_ns()
        if self.on[STEP] and self._step_begin_ns:
            self.ring.put(STEP, 0, _COUNTS.optimizer_steps - 1, self._step_begin_ns, now_ns)
            self.ring.count(STEP, now_ns - self._step_begin_ns)
            if self.mirror is not None:
                self.mirror.show(STEP, 0)
        self._step_begin_ns = now_ns
        kind, _, step, _, _ = self._open
        if kind != _NONE and _COUNTS.optimizer_steps - step > _MAX_STEPS_INSIDE:
            self._forget()

    def switch(self, kinds: int, generation: int) -> None:
        """Mark the kinds of these bits from now on, and no others."""
        is_step_new = kinds & 1 and not self.on[STEP]
        self.on = [bool(kinds >> kind & 1) for kind in range(KINDS)]
        now_ns = _now_ns()
        if is_step_new:
            self._step_begin_ns = now_ns
        self.ring.put(SWITCHED, kinds, _COUNTS.optimizer_steps, now_ns, generation)
        self.ring.put_state(generation, kinds)

    def close(self) -> None:
        """Mark nothing any more, in a forked child, whose file is that of its parent."""
        self.is_open = False
        self.mirror = None
        self.on = [False] * KINDS
        self._forget()

    def _begin(self, kind: int, name: int) -> int:
        step, now_ns = _COUNTS.optimizer_steps, _now_ns()
        number = self.ring.put(kind, name, step, now_ns)
        self._open = (kind, name, step, now_ns, number)
        if self.mirror is not None:
            self.mirror.begin(number, kind, name)
        return number

    def _interrupt(self, kind: int) -> None:
        _, name, _, _, number = self._open
        if kind in (FORWARD, BACKWARD):
            self.leave(number)
            self._waiting = name
        else:
            self._forget()

    def _forget(self) -> None:
        """Leave open what raised, and was never ended."""
        if self.mirror is not None:
            self.mirror.end(self._open[4])
        self._open, self._waiting = _NOTHING, 0
