"""When the device was in a range: by events of the job's stream, which nobody waits for.

An event is recorded on the stream where a range begins, and one where it ends; a thread of its own
asks once a second which ones the device has passed, and writes a mark of them. An answer may take
long where a device hangs, and beats must go on meanwhile. Events are of the job's own torch and are
used again: none is made or destroyed but by the thread of the job.

Devices tell times between events only. No event is passed before it was recorded, so the device's
clock is as far ahead of the host's as the event says that followed its record soonest.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque

from .. import cuda
from ..breaker import PACE
from ..threads import OwnThread
from .ring import DEVICE, MarkRing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    # The event, and when it was recorded.
    Moment = tuple[Any, int]

_MAX_PENDING = 1024
# Times between events are told as a `float` of milliseconds: exact to a microsecond for so long.
_ANCHOR_NS = 8_000_000_000
# What the clocks of host and device may drift apart, which is more than they do.
_DRIFT = 1e-4
_NS_PER_MS = 1e6
THREAD_NAME = "whystuck-devices"
_LOOK_EVERY_S, _STOP_TIMEOUT_S = 1.0, 1.0
# Looks at nothing after which the thread ends.
_MAX_VAIN_LOOKS = 60
_now_ns = time.monotonic_ns


class _Clock:
    """The clock of one device, in ns of the host's, from one of its events on."""

    def __init__(self, moment: Moment) -> None:
        self.anchor, self._offset_ns = moment
        self._newest_ns = float(self._offset_ns)

    def place(self, moments: tuple[Moment, Moment]) -> tuple[int, int] | None:
        """Return when the device passed two events; None where it does not say so."""
        past_ns = []
        for event, recorded_ns in moments:
            passed_ms = cuda.measure_ms(self.anchor, event)
            if passed_ms is None:
                return None
            past_ns.append(passed_ms * _NS_PER_MS)
            self._newest_ns = max(self._newest_ns, recorded_ns - past_ns[-1])
        self._offset_ns = max(self._offset_ns, int(self._newest_ns))
        return self._offset_ns + int(past_ns[0]), self._offset_ns + int(past_ns[1])

    def follow(self, event: Any, passed_ns: int) -> Any:
        """Go on from an event where the anchor is too old; return the event that is free now."""
        past_ns = passed_ns - self._offset_ns
        if past_ns < _ANCHOR_NS:
            return event
        offset_ns = max(self._newest_ns, self._offset_ns - _DRIFT * past_ns) + past_ns
        freed, self.anchor = self.anchor, event
        self._offset_ns = int(offset_ns)
        # What is known of the time before counts for less from now on.
        self._newest_ns = offset_ns - _DRIFT * past_ns
        return freed


class DeviceTimes:
    """The ranges on devices whose end is not known yet."""

    def __init__(self, ring: MarkRing) -> None:
        self._ring = ring
        self._pending: dict[Hashable, deque[tuple[Hashable, Moment, Moment, int, int]]] = {}
        self._free: dict[Hashable, list[Any]] = {}
        self._clocks: dict[Hashable, _Clock] = {}
        self._thread: OwnThread | None = None
        self._owner = os.getpid()
        self._is_over = threading.Event()

    def record(self, stream: Any) -> Moment | None:
        """Record an event on a stream of the job; None where that would be in the way."""
        if self.count() >= _MAX_PENDING or not cuda.may_record(stream):
            return None
        free = self._free.get(_device_of(stream))
        try:
            event = free.pop() if free else None
        except IndexError:  # another thread has taken it
            event = None
        if event is None:
            event = sys.modules[type(stream).__module__].Event(enable_timing=True)
        now_ns = _now_ns()
        event.record(stream)
        return event, now_ns

    def end(self, stream: Any, begin: Moment, name: int, step: int) -> None:
        """Record where a range ends, whose times are written once the device is past it."""
        end = self.record(stream)
        if end is not None:
            device = _device_of(stream)
            waiting = self._pending.setdefault((device, _number_of(stream)), deque())
            waiting.append((device, begin, end, name, step))

    def count(self) -> int:
        """Return how many there are."""
        return sum(map(len, list(self._pending.values())))

    def tend(self) -> None:
        """Have a thread look where there is anything to look at; called once a second."""
        if not self.count() or self._is_over.is_set():
            return
        if self._thread is None:
            # It must not come back from a call while the interpreter is taken down.
            atexit.register(self.stop)
        if self._thread is None or not self._thread.is_alive():
            self._thread = OwnThread(self._run, THREAD_NAME)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and start no other one; what is not written yet is not told."""
        if os.getpid() != self._owner:
            return  # in a forked child the lock of the event may be held by nobody who is there
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        vain = 0
        try:
            while vain < _MAX_VAIN_LOOKS and not self._is_over.is_set():
                vain = 0 if self.count() else vain + 1
                self.look()
                self._is_over.wait(_LOOK_EVERY_S * PACE.factor)
        except Exception:  # the job goes on without us
            self._is_over.set()

    def look(self) -> None:
        """Write what devices are past by now."""
        if not self.count():
            return
        with cuda.Asking() as may_ask:
            if not may_ask:
                return
            for waiting in list(self._pending.values()):
                while waiting and cuda.ask(waiting[0][2][0]):
                    self._write(*waiting.popleft())

    def _write(self, device: Hashable, begin: Moment, end: Moment, name: int, step: int) -> None:
        clock = self._clocks.get(device)
        is_anchor = clock is None
        if clock is None:
            clock = self._clocks[device] = _Clock(begin)
        span = clock.place((begin, end))
        free = self._free.setdefault(device, [])
        if not is_anchor:
            free.append(begin[0])
        if span is None:
            free.append(end[0])
            return
        self._ring.put(DEVICE, name, step, *span)
        self._ring.count(DEVICE, span[1] - span[0])
        free.append(clock.follow(end[0], span[1]))


def _device_of(stream: Any) -> Hashable:
    return type(stream).__module__, str(stream.device)


def _number_of(stream: Any) -> Hashable:
    return getattr(stream, "stream_id", None) or getattr(stream, "cuda_stream", 0)
