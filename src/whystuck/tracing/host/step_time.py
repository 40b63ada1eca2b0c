"""What each step spent its time on: one cause for every ns."""

from __future__ import annotations

import dataclasses

import numpy as np

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Category, is_one_of
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.intervals import Times, Union
from whystuck.tracing.device.work import find_work, join, unite_rows, within
from whystuck.tracing.host.spans import find_calls, find_data_waits, find_syncs
from whystuck.tracing.host.steps import Steps, find_steps
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_CAUSES = (
    "compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "data_wait_ns",
    "host_ns",
    "launch_ns",
    "sync_ns",
)
_COLUMNS = ("rank", "step", "wall_ns", *_CAUSES, "idle_ns")


def measure_step_time(view: TraceView, options: TraceOptions) -> Table:
    """Share the time of each step out, every ns to one cause.

    A step is where the devices are in it: it begins when they have done the work launched before
    it, and ends with the work launched in it. Where the host waits for its device in each step,
    that is the time of the host; where it runs ahead, work counts in the step that launched it.

    What a device does comes first: computation, then communication, then memory work. When no
    device works, it is what holds the host: the wait for the next batch, then a call that waits
    for a device, then any other call of the runtime, then an op or a Python frame. What is left is
    idle: nothing is recorded. In traces without any device the ops of the host compute.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step. All causes are -1 where there are devices, but none of their work is in the
        trace.
    """
    del options
    steps, work = follow_devices(view, find_steps(view)), find_work(view)
    wall = steps.end - steps.start
    columns = {"wall_ns": wall}
    if work.is_known:
        waits = unite_rows(view, find_data_waits(view))
        causes = [
            ("compute_ns", work.compute),
            ("exposed_comm_ns", work.comm),
            ("exposed_memory_ns", work.memory),
            ("data_wait_ns", waits),
            ("sync_ns", unite_rows(view, find_syncs(view))),
            ("launch_ns", unite_rows(view, find_calls(view))),
            ("host_ns", unite_rows(view, _find_host_work(view))),
        ]
        columns |= _share_out(steps, causes)
        columns["idle_ns"] = wall - sum(columns[name] for name in _CAUSES)
    unknown = np.full(len(steps), -1, dtype=np.int64)
    columns |= {"rank": view.rank_column(len(steps)), "step": steps.number}
    return Table({name: columns.get(name, unknown) for name in _COLUMNS})


def follow_devices(view: TraceView, steps: Steps) -> Steps:
    """Find when the devices were at each step.

    Args:
        view: The trace.
        steps: Steps on the host's clock.

    Returns:
        The same steps, later by how far the devices were behind: each begins when the busiest
        queue has done the work launched before it, and ends when all work launched in it is done,
        at the latest where the next one begins. Their own times where devices did nothing.
    """
    rows, launches = view.device_rows, view.launch_rows
    if not steps.are_known or not len(rows):
        return steps
    begun = np.where(launches >= 0, view.events.start_ns[launches], view.device_start_ns)
    ends = view.device_end_ns
    busiest = np.bincount(view.queues.place, weights=ends - view.device_start_ns).argmax()
    is_main = view.queues.place == busiest
    start = np.maximum(steps.start, _find_done(begun[is_main], ends[is_main], steps.start))
    end = np.maximum(steps.end, _find_done(begun, ends, steps.end))
    end = np.minimum(end, np.r_[start[1:], np.iinfo(np.int64).max])
    return dataclasses.replace(steps, start=start, end=np.maximum(end, start))


def _find_done(begun: Times, ends: Times, at: Times) -> Times:
    """Return when all work that was launched before each of some times has ended."""
    order = np.argsort(begun, kind="stable")
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, ends[order]])
    done: Times = reach[np.searchsorted(begun[order], at)]
    return done


def _share_out(steps: Steps, causes: list[tuple[str, Union]]) -> dict[str, np.ndarray]:
    shared, before = {}, np.zeros(len(steps), dtype=np.int64)
    so_far: list[Union] = []
    for name, union in causes:
        if not len(union.start):
            shared[name] = np.zeros_like(before)
            continue
        so_far = [join(*so_far, union)]
        covered = within(so_far[0], steps.start, steps.end)
        shared[name] = covered - before
        before = covered
    return shared


def _find_host_work(view: TraceView) -> Rows:
    rows = view.host_rows
    category = view.events.category[rows]
    kinds = (Category.CPU_OP, Category.PYTHON, Category.OVERHEAD)
    return rows[is_one_of(category, kinds)]


METRIC = Metric("step_time", _COLUMNS, measure_step_time)
