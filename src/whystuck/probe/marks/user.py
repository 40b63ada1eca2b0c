"""Marks of the job's own: instants, and ranges of any thread."""

from __future__ import annotations

import time

from .. import progress
from ..calling.interrupts import let_through
from .ring import USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .devices import DeviceTimes, Moment
    from .mirror import Mirror
    from .phases import Phases

_now_ns = time.monotonic_ns
# Those of this process, while there is anything that is marked.
PHASES: list[Phases] = []
# Where devices tell when they were in a range of the job's.
DEVICES: list[DeviceTimes] = []


class Mark:
    """An instant, which `begin` or ``with`` turns into a range; no method raises."""

    __slots__ = (
        "_begin_ns",
        "_mirror",
        "_moment",
        "_name",
        "_number",
        "_phases",
        "_step",
        "_stream",
    )

    def __init__(
        self, phases: Phases, name: object, stream: object = None, mirror: Mirror | None = None
    ) -> None:
        self._phases, self._mirror = phases, mirror
        self._stream = stream
        self._moment: tuple[DeviceTimes, Moment] | None = None
        self._name = phases.ring.learn_name(str(name))
        self._step = progress.COUNTS.optimizer_steps
        self._begin_ns = _now_ns()
        self._number = self._put(self._begin_ns)
        if mirror is not None:
            mirror.show(USER, self._name)

    def begin(self) -> Mark:
        """Begin now; return this mark."""
        if self._phases.is_open:
            self._begin_ns = _now_ns()
            if not self._number or not self._phases.ring.begin_anew(self._number, self._begin_ns):
                self._number = self._put(0)
            if self._stream is not None:
                self._moment = self._record()
            if self._mirror is not None:
                self._mirror.begin(self._number, USER, self._name)
        return self

    def end(self) -> None:
        """End now; a mark that is begun once more is another one."""
        if self._phases.is_open and self._number:
            number, self._number = self._number, 0
            if self._moment is not None:
                self._end_on_device(*self._moment)
            self._phases.ring.end(number, USER, self._name, self._step, self._begin_ns)
            if self._mirror is not None:
                self._mirror.end(number)

    def _record(self) -> tuple[DeviceTimes, Moment] | None:
        """Have the device tell when it comes here."""
        try:
            devices = DEVICES[-1]
            moment = devices.record(self._stream)
            return None if moment is None else (devices, moment)
        except Exception as error:  # no stream, or one of a device without such events
            let_through(error)
            return None

    def _end_on_device(self, devices: DeviceTimes, begin: Moment) -> None:
        self._moment = None
        try:
            devices.end(self._stream, begin, self._name, self._step)
        except Exception as error:  # as above
            let_through(error)
            return

    def _put(self, end_ns: int) -> int:
        return self._phases.ring.put(USER, self._name, self._step, self._begin_ns, end_ns)

    def __enter__(self) -> Mark:  # noqa: PYI034 - Python 3.9 has no Self
        """Begin now."""
        return self.begin()

    def __exit__(self, *_: object) -> None:
        """End now, however the block has ended."""
        self.end()


def mark(name: object, stream: object = None) -> Mark | None:
    """Mark an instant; None while nothing is marked, or where that is not possible."""
    try:
        phases = PHASES[-1]
        return Mark(phases, name, stream, phases.mirror) if phases.on[USER] else None
    except Exception as error:  # the job goes on without us
        let_through(error)
        return None
