"""Marks of the job's own: instants, and ranges of any thread."""

from __future__ import annotations

import time

from .. import progress
from ..interrupts import let_through
from .ring import USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .phases import Phases

_now_ns = time.monotonic_ns
# Those of this process, while there is anything that is marked.
PHASES: list[Phases] = []


class Mark:
    """An instant, which `begin` or ``with`` turns into a range; no method raises."""

    __slots__ = ("_begin_ns", "_name", "_number", "_phases", "_step")

    def __init__(self, phases: Phases, name: object) -> None:
        self._phases = phases
        self._name = phases.ring.learn_name(str(name))
        self._step = progress.COUNTS.optimizer_steps
        self._begin_ns = _now_ns()
        self._number = self._put(self._begin_ns)

    def begin(self) -> Mark:
        """Begin now; return this mark."""
        if self._phases.is_open:
            self._begin_ns = _now_ns()
            if not self._number or not self._phases.ring.begin_anew(self._number, self._begin_ns):
                self._number = self._put(0)
        return self

    def end(self) -> None:
        """End now; a mark that is begun once more is another one."""
        if self._phases.is_open and self._number:
            number, self._number = self._number, 0
            self._phases.ring.end(number, USER, self._name, self._step, self._begin_ns)

    def _put(self, end_ns: int) -> int:
        return self._phases.ring.put(USER, self._name, self._step, self._begin_ns, end_ns)

    def __enter__(self) -> Mark:  # noqa: PYI034 - Python 3.9 has no Self
        """Begin now."""
        return self.begin()

    def __exit__(self, *_: object) -> None:
        """End now, however the block has ended."""
        self.end()


def mark(name: object) -> Mark | None:
    """Mark an instant; None while nothing is marked, or where that is not possible."""
    try:
        phases = PHASES[-1]
        return Mark(phases, name) if phases.on[USER] else None
    except Exception as error:  # the job goes on without us
        let_through(error)
        return None
