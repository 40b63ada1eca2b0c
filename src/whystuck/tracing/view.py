"""What many metrics need of a trace, worked out once: device work, classes, launches, window."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import DEVICE_WORK, Category, Trace, TraceEvents, is_one_of
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.classes import classify_rows
from whystuck.tracing.device.busy import Busy, measure_busy
from whystuck.tracing.device.gaps import NO_LAUNCH, Gaps, find_gaps
from whystuck.tracing.device.launching import find_older, join_launches
from whystuck.tracing.device.queues import Queues, make_queues
from whystuck.tracing.host.optimizer_steps import OptimizerSteps, find_optimizer_steps
from whystuck.tracing.host.trees import HostTree

_STEP = re.compile(r"ProfilerStep\s*#(\d{1,18})")


T = TypeVar("T")


class TraceView:
    """A trace, with what follows from it. All rows are positions in `Trace.events`."""

    def __init__(self, trace: Trace, options: TraceOptions | None = None) -> None:
        self.trace = trace
        self.options = options or TraceOptions()
        # What functions in other modules have found; see `once`.
        self.found: dict[Callable[..., Any], Any] = {}

    @property
    def events(self) -> TraceEvents:
        """All events of the trace, in and out of the window."""
        return self.trace.events

    def rank_column(self, count: int) -> NDArray[np.int64]:
        """Return the rank of the trace as a column of so many rows."""
        return np.full(count, self.trace.rank, dtype=np.int64)

    @cached_property
    def end_ns(self) -> NDArray[np.int64]:
        """The end of each event."""
        return self.events.start_ns + self.events.duration_ns

    def find_ends(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ends of some events.

        Where most events are frames, ``end_ns`` of all takes longer than what else is measured.
        """
        return self.events.start_ns[rows] + self.events.duration_ns[rows]

    @cached_property
    def steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Profiler steps on the host's clock, by start: number, start and end in ns."""
        events, names = self.events, self.trace.names
        number = {
            index: int(match[1])
            for index, name in enumerate(names)
            if (match := _STEP.fullmatch(name))
        }
        is_named = np.zeros(len(names), dtype=np.bool_)
        is_named[list(number)] = True
        rows = events.start_ns[:0].astype(np.int64)
        # The first releases of Kineto wrote them as ops.
        for category in (Category.USER_ANNOTATION, Category.CPU_OP) if number else ():
            rows = np.flatnonzero(events.category == category)
            rows = rows[is_named[events.name[rows]]]
            if len(rows):
                break
        rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
        numbers = np.array([number[name] for name in events.name[rows].tolist()], dtype=np.int64)
        return numbers, events.start_ns[rows], self.find_ends(rows)

    @cached_property
    def optimizer_steps(self) -> OptimizerSteps:
        """Steps on the host's clock by the annotations of optimizers."""
        return find_optimizer_steps(self.trace)

    @cached_property
    def cut_ns(self) -> int | None:
        """Where the window ends on the host: at the start of the last of several steps."""
        numbers, starts, _ = self.steps
        if self.options.all_steps or len(np.unique(numbers)) < 2:  # noqa: PLR2004
            return None
        return int(starts[-1])

    @cached_property
    def all_device_rows(self) -> NDArray[np.int64]:
        """Work of devices, in and out of the window, in the order of the file."""
        return np.flatnonzero(is_one_of(self.events.category, DEVICE_WORK))

    @cached_property
    def all_call_rows(self) -> NDArray[np.int64]:
        """Calls of the runtime and the driver that have a correlation."""
        events = self.events
        is_call = (events.category == Category.RUNTIME) | (events.category == Category.DRIVER)
        return np.flatnonzero(is_call & (events.correlation >= 0))

    @cached_property
    def all_launch_rows(self) -> NDArray[np.int64]:
        """The call that launched each row of ``all_device_rows``, -1 when not in the trace."""
        return join_launches(self.events, self.all_device_rows, self.all_call_rows)

    @cached_property
    def _is_device_row_kept(self) -> NDArray[np.bool_]:
        launches = self.all_launch_rows
        if self.cut_ns is None:
            return np.ones(len(launches), dtype=np.bool_)
        starts = self.events.start_ns
        own = starts[self.all_device_rows]
        # Work belongs to the step in which it was launched; without a launch, in which it began.
        begun = np.where(launches >= 0, starts[launches], own)
        kept: NDArray[np.bool_] = begun < self.cut_ns
        if (launches >= 0).all():
            return kept
        place = make_queues(*self._find_places(self.all_device_rows)).place
        kept &= ~find_older(own, launches, place)
        return kept

    @cached_property
    def device_rows(self) -> NDArray[np.int64]:
        """Work of devices in the window, in the order of the file."""
        return self.all_device_rows[self._is_device_row_kept]

    @cached_property
    def device_start_ns(self) -> NDArray[np.int64]:
        """When each row of ``device_rows`` began."""
        return self.events.start_ns[self.device_rows]

    @cached_property
    def device_end_ns(self) -> NDArray[np.int64]:
        """When each row of ``device_rows`` ended."""
        return self.device_start_ns + self.events.duration_ns[self.device_rows]

    @cached_property
    def launch_rows(self) -> NDArray[np.int64]:
        """The launch of each row of ``device_rows``, or -1."""
        return self.all_launch_rows[self._is_device_row_kept]

    @cached_property
    def device(self) -> NDArray[np.int64]:
        """The device of each row of ``device_rows``; its process where the trace tells none.

        Processes of work are numbered like devices. -1 where neither is a number.
        """
        return self._find_places(self.device_rows)[0]

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """The stream of each row of ``device_rows``; its thread where the trace tells none."""
        return self._find_places(self.device_rows)[1]

    def _find_places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        events = self.events
        device, stream = events.device[rows].astype(np.int64), events.stream[rows].astype(np.int64)
        device = np.where(device >= 0, device, np.maximum(events.pid[rows], -1))
        return device, np.where(stream >= 0, stream, np.maximum(events.tid[rows], -1))

    @cached_property
    def queues(self) -> Queues:
        """The streams of all devices, and which rows of ``device_rows`` ran on each."""
        return make_queues(self.device, self.stream)

    @cached_property
    def devices(self) -> NDArray[np.int64]:
        """The devices that worked, ascending."""
        return np.unique(self.queues.device)

    @cached_property
    def device_place(self) -> NDArray[np.int64]:
        """The position in ``devices`` of the device of each row of ``device_rows``."""
        return np.searchsorted(self.devices, self.device)

    @cached_property
    def device_busy(self) -> Busy:
        """How long each of ``devices`` worked."""
        return self._measure_busy(self.device_place, len(self.devices))

    @cached_property
    def stream_busy(self) -> Busy:
        """How long each of ``queues`` worked."""
        return self._measure_busy(self.queues.place, len(self.queues))

    @cached_property
    def device_gaps(self) -> Gaps:
        """The time before each piece of work in which its device did nothing."""
        return self._find_gaps(self.device_place)

    @cached_property
    def stream_gaps(self) -> Gaps:
        """The time before each piece of work in which its stream did nothing."""
        return self._find_gaps(self.queues.place)

    def _find_gaps(self, place: NDArray[np.int64]) -> Gaps:
        launches = self.launch_rows
        launched = np.where(launches >= 0, self.events.start_ns[launches], NO_LAUNCH)
        return find_gaps(self.device_start_ns, self.device_end_ns, launched, place)

    def _measure_busy(self, place: NDArray[np.int64], size: int) -> Busy:
        start, end = self.device_start_ns, self.device_end_ns
        return measure_busy(start, end, self.device_class, place, size)

    @cached_property
    def host_rows(self) -> NDArray[np.int64]:
        """Events of the host in the window."""
        events = self.events
        is_host = ~is_one_of(
            events.category,
            (*DEVICE_WORK, Category.GPU_ANNOTATION, Category.SYNC, Category.SPAN, Category.MEMORY),
        )
        if self.cut_ns is not None:
            is_host &= events.start_ns < self.cut_ns
        return np.flatnonzero(is_host)

    @cached_property
    def ops(self) -> HostTree:
        """Ops and annotations of the host, in and out of the window, and what lies in what."""
        return HostTree.of(self.events, (Category.USER_ANNOTATION, Category.CPU_OP))

    @cached_property
    def launching_ops(self) -> NDArray[np.int64]:
        """The deepest place in ``ops`` around the launch of each of ``device_rows``, or -1."""
        return self.ops.find_launching(self.events, self.device_rows, self.launch_rows)

    @cached_property
    def frames(self) -> HostTree:
        """Python frames, in and out of the window, and what was called in what."""
        return HostTree.of(self.events, (Category.PYTHON,))

    @cached_property
    def device_class(self) -> NDArray[np.uint8]:
        """The `KernelClass` of each row of ``device_rows``."""
        return classify_rows(
            self.trace, self.device_rows, self.launch_rows, self.options.comm_patterns
        )


def once(find: Callable[[TraceView], T]) -> Callable[[TraceView], T]:
    """Have a function look only once at each trace: what it finds is needed by several metrics."""

    @wraps(find)
    def find_once(view: TraceView) -> T:
        if find not in view.found:
            view.found[find] = find(view)
        found: T = view.found[find]
        return found

    return find_once
