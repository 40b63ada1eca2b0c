"""What each step spent its time on: one cause for every ns."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table
from whystuck.evidence.trace import Category
from whystuck.tracing.host_spans import find_calls, find_data_waits, find_syncs
from whystuck.tracing.host_tree import Rows
from whystuck.tracing.intervals import Union
from whystuck.tracing.metric import Metric
from whystuck.tracing.options import TraceOptions
from whystuck.tracing.steps import Steps, find_steps
from whystuck.tracing.view import TraceView
from whystuck.tracing.work import find_work, join, unite_rows, within

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
    steps, work = find_steps(view), find_work(view)
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
    columns |= {"rank": np.full(len(steps), view.trace.rank), "step": steps.number}
    return Table({name: columns.get(name, unknown) for name in _COLUMNS})


def _share_out(steps: Steps, causes: list[tuple[str, Union]]) -> dict[str, np.ndarray]:
    shared, before = {}, np.zeros(len(steps), dtype=np.int64)
    so_far: list[Union] = []
    for name, union in causes:
        so_far = [join(*so_far, union)]
        covered = within(so_far[0], steps.start, steps.end)
        shared[name] = covered - before
        before = covered
    return shared


def _find_host_work(view: TraceView) -> Rows:
    rows = view.host_rows
    category = view.events.category[rows]
    kinds = (Category.CPU_OP, Category.PYTHON, Category.OVERHEAD)
    return rows[np.isin(category, kinds)]


METRIC = Metric("step_time", _COLUMNS, measure_step_time)
