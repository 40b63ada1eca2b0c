"""Steps of a trace that the profiler did not mark, by the annotations that optimizers leave.

Torch writes `Optimizer.step#SGD.step` around each step of an optimizer, also in traces on demand. A
step of the job runs from the end of one to the end of the next: the batch, the forward and the
backward pass before an optimizer belong to it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import DEVICE_WORK, Category, Trace, is_one_of

Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MARK = re.compile(r"Optimizer\.step#.*")
_LOADER = re.compile(r"enumerate\(\w*(?:DataLoader|DataPipe)\)#.*")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function.*")
_LAUNCH = "LaunchKernel"
_HOST = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON, Category.RUNTIME)
# Optimizers that take turns for longer than this are no cycle.
_LONGEST_CYCLE = 64
# A first piece with fewer ops than this share of any other step began in the middle of a step.
_WHOLE_SHARE = 0.9


@dataclass(frozen=True)
class OptimizerSteps:
    """Steps in order of time: number, start and end in ns.

    ``thread`` is the thread of the optimizer, as `key_threads` numbers it; -1 without steps.
    ``is_cut`` tells that work which the last step launched is not in the trace.
    """

    number: Whole
    start: Whole
    end: Whole
    thread: int = -1
    is_cut: bool = False


_NOTHING = np.empty(0, dtype=np.int64)
_NONE = OptimizerSteps(_NOTHING, _NOTHING, _NOTHING)


def key_threads(trace: Trace, rows: Whole) -> Whole:
    """Return a number for the thread of each of some events."""
    events = trace.events
    key: Whole = (events.pid[rows].astype(np.int64) << 32) + (events.tid[rows].astype(np.int64))
    return key


def find_optimizer_steps(trace: Trace) -> OptimizerSteps:
    """Find the steps that optimizers mark.

    Several optimizers that take turns make one step together. What lies before the first mark is
    a step only when it is a whole one; what comes after the last mark belongs to none.

    Args:
        trace: The trace.

    Returns:
        The steps; none where no optimizer is annotated, or those that run inside of the backward
        pass are.
    """
    rows = _find_marks(trace)
    if not len(rows):
        return _NONE
    keys = key_threads(trace, rows)
    threads, count = np.unique(keys, return_counts=True)
    thread = int(threads[count.argmax()])
    host = _Host(trace, thread)
    marks = host.keep_outermost(rows[keys == thread])
    if not len(marks):
        return _NONE
    closing = _choose_closing(host, marks)
    ends = trace.events.start_ns[marks[closing]] + trace.events.duration_ns[marks[closing]]
    starts = np.r_[host.begin_ns, ends[:-1]]
    number = np.arange(len(ends), dtype=np.int64)
    is_whole = np.ones(len(ends), dtype=np.bool_)
    is_whole[0] = _is_first_whole(host, closing, ends)
    return OptimizerSteps(
        number[is_whole],
        starts[is_whole],
        ends[is_whole],
        thread,
        _lacks_work(trace, starts[is_whole], ends[is_whole]),
    )


def _find_marks(trace: Trace) -> Whole:
    is_named = _match(trace, _MARK)
    if not is_named.any():
        return np.empty(0, dtype=np.int64)
    events = trace.events
    # The first releases of Kineto wrote annotations as ops.
    for category in (Category.USER_ANNOTATION, Category.CPU_OP):
        rows = np.flatnonzero(events.category == category)
        rows = rows[is_named[events.name[rows]]]
        if len(rows):
            break
    return rows


def _match(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    names = trace.names
    return np.fromiter((bool(pattern.fullmatch(name)) for name in names), np.bool_, len(names))


class _Host:
    """What the thread of the optimizer did."""

    def __init__(self, trace: Trace, thread: int) -> None:
        self.trace = trace
        events = trace.events
        rows = np.flatnonzero(is_one_of(events.category, _HOST))
        self.rows = rows[key_threads(trace, rows) == thread]
        is_op = events.category[self.rows] == Category.CPU_OP
        self.op_ns = np.sort(events.start_ns[self.rows[is_op]])
        self.begin_ns = int(events.start_ns[self.rows].min())
        self._is_backward = _match(trace, _BACKWARD)

    @property
    def has_backward(self) -> bool:
        """Whether any thread of the trace went backward."""
        return bool(self._is_backward[self.trace.events.name].any())

    def keep_outermost(self, marks: Whole) -> Whole:
        """Return marks by time: none that another one, or the backward pass, encloses."""
        events = self.trace.events
        around = self.rows[self._is_backward[events.name[self.rows]]]
        both = np.r_[around, marks]
        ends = events.start_ns[both] + events.duration_ns[both]
        # Of those that begin at one time, the longest is the outer one.
        order = np.lexsort((-ends, events.start_ns[both]))
        both, ends = both[order], ends[order]
        reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, ends])[:-1]
        kept = (events.start_ns[both] >= reach) & (order >= len(around))
        outer: Whole = both[kept]
        return outer

    def count_ops(self, start: Whole, end: Whole) -> Whole:
        """Count the ops that begin in each of some times."""
        count: Whole = np.searchsorted(self.op_ns, end) - np.searchsorted(self.op_ns, start)
        return count


def _choose_closing(host: _Host, marks: Whole) -> Whole:
    """Return the places of the marks with which a step of the job ends."""
    events = host.trace.events
    starts = events.start_ns[marks]
    names = events.name[marks].tolist()
    every = np.arange(len(marks))
    is_loader = _match(host.trace, _LOADER)
    loads = np.sort(events.start_ns[host.rows[is_loader[events.name[host.rows]]]])
    # How many batches were asked for before each mark.
    batch = np.searchsorted(loads, starts)
    period = _find_period(names, least=1)
    if period == 0:
        # Optimizers in no order: the one that steps most often marks the steps.
        common = Counter(names).most_common(1)[0][0]
        return np.flatnonzero([name == common for name in names])
    if period == 1:
        ops = host.count_ops(starts, starts + events.duration_ns[marks])
        period = _find_period(ops.tolist(), least=2) or 1
    if period == 1:
        return _close_batches(batch, every)
    # Of a cycle the last one is that after which a batch is loaded, where any is.
    loaded = np.flatnonzero(np.diff(batch) > 0)
    last = Counter((loaded % period).tolist()).most_common(1) or [((len(marks) - 1) % period, 0)]
    closing: Whole = every[every % period == last[0][0]]
    return closing


def _find_period(values: list[int], least: int) -> int:
    """Return after how many values they repeat; 0 where they do not.

    Args:
        values: One for each mark.
        least: How often more they must be seen to repeat than once; with 1, a cycle in which each
            value comes once need not be seen twice.
    """
    count, different = len(values), len(set(values))
    for period in range(1, min(count, _LONGEST_CYCLE) + 1):
        if values[period:] != values[:-period]:
            continue
        if period * 2 <= count or (least == 1 and period == different):
            return period
    return 0


def _close_batches(batch: Whole, every: Whole) -> Whole:
    """Return the last mark of each batch, where all batches have as many marks: two or more."""
    _, first, count = np.unique(batch, return_index=True, return_counts=True)
    inner = count[1:-1]
    if not len(inner) or inner.min() != inner.max() or inner[0] == 1:
        return every
    return first + count - 1


def _is_first_whole(host: _Host, closing: Whole, ends: Whole) -> bool:
    """Tell whether the trace began with a step, and not in the middle of one."""
    ops = host.count_ops(np.r_[host.begin_ns, ends[:-1]], ends)
    if len(ends) == 1:
        # Of a single one it is known where the trace is just this step: it ends with it.
        return host.has_backward and bool((host.op_ns < ends[0]).all())
    gap = int(np.diff(closing).max())
    return bool(ops[0] >= _WHOLE_SHARE * ops[1:].min() and closing[0] + 1 >= gap)


def _lacks_work(trace: Trace, starts: Whole, ends: Whole) -> bool:
    """Tell whether the last of several steps launched more that is not there than the others."""
    events = trace.events
    if len(ends) < 2:  # noqa: PLR2004 - there is nothing to compare it with
        return False
    is_launch = np.array([_LAUNCH in name for name in trace.names], dtype=np.bool_)
    is_call = (events.category == Category.RUNTIME) | (events.category == Category.DRIVER)
    calls = np.flatnonzero(is_call & (events.correlation >= 0))
    calls = calls[is_launch[events.name[calls]]]
    work = events.correlation[is_one_of(events.category, DEVICE_WORK)]
    lost = np.sort(events.start_ns[calls[~np.isin(events.correlation[calls], work)]])
    missing = np.searchsorted(lost, ends) - np.searchsorted(lost, starts)
    return bool(len(work)) and bool(missing[-1] > missing[:-1].max())
