"""What many metrics need of a trace, worked out once: device work, classes, launches, window."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.trace import DEVICE_WORK, Category, Trace, TraceEvents
from whystuck.tracing.classes import KernelClass, classify_names
from whystuck.tracing.host_tree import HostTree
from whystuck.tracing.options import TraceOptions

_STEP = re.compile(r"ProfilerStep\s*#(\d+)")


class TraceView:
    """A trace, with what follows from it. All rows are positions in `Trace.events`."""

    def __init__(self, trace: Trace, options: TraceOptions | None = None) -> None:
        self.trace = trace
        self.options = options or TraceOptions()

    @property
    def events(self) -> TraceEvents:
        """All events of the trace, in and out of the window."""
        return self.trace.events

    @cached_property
    def end_ns(self) -> NDArray[np.int64]:
        """The end of each event."""
        return self.events.start_ns + self.events.duration_ns

    @cached_property
    def steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Profiler steps on the host's clock, by start: number, start and end in ns."""
        events, names = self.events, self.trace.names
        number = {
            index: int(match[1])
            for index, name in enumerate(names)
            if (match := _STEP.fullmatch(name))
        }
        is_named = np.isin(events.name, list(number))
        is_step = is_named & (events.category == Category.USER_ANNOTATION)
        if not is_step.any():  # the first releases of Kineto wrote them as ops
            is_step = is_named & (events.category == Category.CPU_OP)
        rows = np.flatnonzero(is_step)
        rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
        numbers = np.array([number[name] for name in events.name[rows].tolist()], dtype=np.int64)
        return numbers, events.start_ns[rows], self.end_ns[rows]

    @cached_property
    def cut_ns(self) -> int | None:
        """Where the window ends on the host: at the start of the last of several steps."""
        starts = self.steps[1]
        return None if self.options.all_steps or len(starts) < 2 else int(starts[-1])  # noqa: PLR2004

    @cached_property
    def all_device_rows(self) -> NDArray[np.int64]:
        """Work of devices, in and out of the window, in the order of the file."""
        return np.flatnonzero(np.isin(self.events.category, DEVICE_WORK))

    @cached_property
    def all_call_rows(self) -> NDArray[np.int64]:
        """Calls of the runtime and the driver that have a correlation."""
        events = self.events
        is_call = (events.category == Category.RUNTIME) | (events.category == Category.DRIVER)
        return np.flatnonzero(is_call & (events.correlation >= 0))

    @cached_property
    def all_launch_rows(self) -> NDArray[np.int64]:
        """The call that launched each row of ``all_device_rows``, -1 when not in the trace."""
        events, calls = self.events, self.all_call_rows
        if not len(calls):
            return np.full(len(self.all_device_rows), -1, dtype=np.int64)
        # A driver call may lie inside a runtime call of the same correlation: the outer one counts.
        order = np.lexsort((events.start_ns[calls], events.correlation[calls]))
        calls = calls[order]
        wanted = events.correlation[self.all_device_rows]
        keys = events.correlation[calls]
        place = np.minimum(np.searchsorted(keys, wanted), len(calls) - 1)
        return np.where((keys[place] == wanted) & (wanted >= 0), calls[place], -1)

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
        return kept

    @cached_property
    def device_rows(self) -> NDArray[np.int64]:
        """Work of devices in the window, in the order of the file."""
        return self.all_device_rows[self._is_device_row_kept]

    @cached_property
    def launch_rows(self) -> NDArray[np.int64]:
        """The launch of each row of ``device_rows``, or -1."""
        return self.all_launch_rows[self._is_device_row_kept]

    @cached_property
    def host_rows(self) -> NDArray[np.int64]:
        """Events of the host in the window."""
        events = self.events
        is_host = ~np.isin(
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
    def frames(self) -> HostTree:
        """Python frames, in and out of the window, and what was called in what."""
        return HostTree.of(self.events, (Category.PYTHON,))

    @cached_property
    def device_class(self) -> NDArray[np.uint8]:
        """The `KernelClass` of each row of ``device_rows``."""
        events = self.events
        by_name = classify_names(self.trace.names, self.options.comm_patterns)
        rows = self.device_rows
        classes = by_name[events.name[rows]]
        is_copy = events.category[rows] != Category.KERNEL
        classes = np.where(is_copy, KernelClass.MEMORY, classes)
        # What the trace itself calls a collective is one, whatever the name of the kernel.
        collective = self.trace.get("collective:text").at(rows) >= 0
        return np.where(collective & ~is_copy, KernelClass.COMM, classes).astype(np.uint8)
