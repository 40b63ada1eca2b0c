"""What ran in each step, by name: how often, how long, and how much work of devices it launched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import DEVICE_WORK, Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.diff.host import KINDS, HostCalls, host_calls
from whystuck.tracing.host.call_trees import end_subtrees
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]

ITEM_COLUMNS = ("rank", "step", "kind", "name", "count", "sum_ns", "self_ns", "device_ns")
STEP_COLUMNS = ("rank", "step", "start_ns", "wall_ns", "device_ns", "mark")
# Counted by name, though no calls of the host and no work of devices.
_LISTED = (Category.GPU_ANNOTATION, Category.SYNC, Category.OVERHEAD, Category.OTHER)


def measure_items(view: TraceView, options: TraceOptions) -> Table:
    """Sum up what ran in each step of a rank.

    ``sum_ns`` is the time from start to end, calls of others included; of ``self_ns`` these are
    left out (events of devices call none). ``device_ns`` is the time of the work of devices that
    was launched inside, for the work itself its own. Work belongs to the step in which it was
    launched.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each step, kind and name.
    """
    del options
    calls = host_calls(view)
    tree, events = calls.tree, view.events
    device_ns = _sum_launched(view, calls)
    begins = np.where(
        view.all_launch_rows >= 0, events.start_ns[view.all_launch_rows], _starts_of_work(view)
    )
    others = np.flatnonzero(np.isin(events.category, _LISTED))
    rows = np.r_[tree.row, view.all_device_rows, others]
    step = calls.steps.find(
        np.r_[events.start_ns[tree.row], begins, events.start_ns[others]].astype(np.int64)
    )
    length = events.duration_ns[rows]
    own = np.r_[tree.self_ns, length[len(tree) :]]
    work = events.duration_ns[view.all_device_rows]
    launched = np.r_[device_ns, work, np.zeros(len(others), dtype=np.int64)]
    kept = step >= 0
    return _group(view, calls, rows[kept], step[kept], (length[kept], own[kept], launched[kept]))


def _starts_of_work(view: TraceView) -> Whole:
    return view.events.start_ns[view.all_device_rows]


def _sum_launched(view: TraceView, calls: HostCalls) -> Whole:
    """Sum up the time of device work that each call of the tree launched, itself or below."""
    tree, launches = calls.tree, view.all_launch_rows
    place = np.full(len(view.events) + 1, -1, dtype=np.int64)
    place[tree.row] = np.arange(len(tree))
    at = place[launches]
    known = (launches >= 0) & (at >= 0)
    own = np.zeros(len(tree), dtype=np.int64)
    np.add.at(own, at[known], view.events.duration_ns[view.all_device_rows][known])
    before = np.r_[np.int64(0), np.cumsum(own)]
    found: Whole = before[end_subtrees(tree)] - before[:-1]
    return found


def _group(
    view: TraceView, calls: HostCalls, rows: Whole, step: Whole, sums: tuple[Whole, ...]
) -> Table:
    """Add up events of one step, kind and name."""
    labels, label = calls.labels
    kind = calls.kind[view.events.category[rows]]
    key = (step * len(KINDS) + kind) * max(len(labels), 1) + label[view.events.name[rows]]
    found, group = np.unique(key, return_inverse=True)
    name, rest = found % max(len(labels), 1), found // max(len(labels), 1)
    columns: dict[str, NDArray[np.generic]] = {
        "rank": view.rank_column(len(found)),
        "step": calls.steps.number[rest // len(KINDS)],
        "kind": text_column([KINDS[one] for one in (rest % len(KINDS)).tolist()]),
        "name": text_column([labels[one] for one in name.tolist()]),
        "count": np.bincount(group, minlength=len(found)).astype(np.int64),
    }
    for column, values in zip(("sum_ns", "self_ns", "device_ns"), sums, strict=True):
        total = np.zeros(len(found), dtype=np.int64)
        np.add.at(total, group, values)
        columns[column] = total
    return Table(columns)


def measure_steps(view: TraceView, options: TraceOptions) -> Table:
    """Measure the steps that a comparison looks at; one of number -1 where a trace has none.

    ``device_ns`` is the sum of the lengths of all device work in the window, wherever launched.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step.
    """
    del options
    steps = host_calls(view).steps
    rows = np.flatnonzero(np.isin(view.events.category, DEVICE_WORK))
    place = steps.find(view.events.start_ns[rows])
    spent = np.zeros(len(steps), dtype=np.int64)
    np.add.at(spent, place[place >= 0], view.events.duration_ns[rows][place >= 0])
    return Table(
        {
            "rank": view.rank_column(len(steps)),
            "step": steps.number,
            "start_ns": steps.start,
            "wall_ns": steps.end - steps.start,
            "device_ns": spent,
            "mark": text_column([steps.mark] * len(steps)),
        }
    )


ITEMS = Metric("diff_items", ITEM_COLUMNS, measure_items, is_default=False)
STEPS = Metric("diff_steps", STEP_COLUMNS, measure_steps, is_default=False)
