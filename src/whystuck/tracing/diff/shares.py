"""Who each ns of a step belongs to: one name and one class, so that the parts add up to the step.

A device that works comes first, then what the host does meanwhile: the op or call that runs on the
thread of the steps, those of other threads, and the Python frame or annotation. What is left is
told as such.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.intervals import Union, cover, unite
from whystuck.tracing.classes import KernelClass, classify_rows
from whystuck.tracing.device.work import join
from whystuck.tracing.diff.host import KINDS, HostCalls, host_calls
from whystuck.tracing.host.call_trees import CallTree, build_tree
from whystuck.tracing.host.spans import find_host_collectives, find_syncs
from whystuck.tracing.host.steps import Steps
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]

SHARE_COLUMNS = ("rank", "step", "class", "kind", "name", "ns")
CLASSES = (
    "compute",
    "exposed_comm",
    "exposed_memory",
    "data_wait",
    "sync",
    "launch",
    "host",
    "idle",
)
REST_NAME = "(nothing recorded)"
_COMPUTE, _COMM, _MEMORY, _LOADING, _SYNC, _LAUNCH, _HOST, _IDLE = range(len(CLASSES))
_DEVICE_ORDER = {
    KernelClass.COMPUTE: _COMPUTE,
    KernelClass.COMM: _COMM,
    KernelClass.MEMORY: _MEMORY,
}
_OPS = (Category.CPU_OP, Category.RUNTIME, Category.DRIVER)


@dataclass(frozen=True)
class _Part:
    """Some time of a step: ``label`` is -1 for what nothing was recorded of."""

    step: Whole
    kind: Whole
    label: Whole
    group: Whole
    ns: Whole


def measure_shares(view: TraceView, options: TraceOptions) -> Table:
    """Share out each step of a rank among names.

    Args:
        view: The trace.
        options: With patterns of kernels that communicate.

    Returns:
        A row for each step, class, kind and name. The ``ns`` of a step add up to its wall time.
    """
    calls = host_calls(view)
    parts, covered = _share_devices(view, calls, options)
    # Nested ops of the thread of the steps, then those of the other threads, busiest first.
    tree, events = calls.tree, view.events
    is_op = np.isin(events.category[tree.row], _OPS)
    spent = np.bincount(tree.thread[is_op], weights=tree.self_ns[is_op])
    others = [one for one in np.argsort(-spent, kind="stable").tolist() if spent[one] > 0]
    threads = dict.fromkeys([calls.main_thread, *others])
    for thread in threads:
        mine = np.flatnonzero(is_op & (tree.thread == thread))
        part, covered = _share_calls(view, calls, _cut(tree, mine), mine, covered)
        parts.append(part)
    is_main = (tree.thread == calls.main_thread) & ~_is_step_row(view, calls)
    mine = np.flatnonzero(is_main)
    part, _ = _share_calls(view, calls, _cut(tree, mine), mine, covered)
    parts.append(part)
    return _make_table(view, calls, [*parts, _share_rest(calls.steps, parts)])


def _is_step_row(view: TraceView, calls: HostCalls) -> NDArray[np.bool_]:
    rows = calls.tree.row
    is_annotation = view.events.category[rows] == Category.USER_ANNOTATION
    found: NDArray[np.bool_] = is_annotation & calls.is_step[view.events.name[rows]]
    return found


def _cut(tree: CallTree, chosen: Whole) -> CallTree:
    """Return the tree of some of the events only; its rows are positions in the whole tree."""
    index = np.arange(len(tree), dtype=np.int64)
    return build_tree(tree.start_ns, tree.end_ns, tree.thread, index[chosen])


def _share_devices(
    view: TraceView, calls: HostCalls, options: TraceOptions
) -> tuple[list[_Part], Union]:
    """Share out the time of devices: compute first, then communication, then memory."""
    events = view.events
    rows = view.all_device_rows
    classes = classify_rows(view.trace, rows, view.all_launch_rows, options.comm_patterns)
    covered = Union(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    parts = []
    for kernel_class, group in _DEVICE_ORDER.items():
        mine = rows[classes == kernel_class]
        mine = mine[np.argsort(events.start_ns[mine], kind="stable")]
        start, end = events.start_ns[mine], view.end_ns[mine]
        # Of two that run at a time, the one that began first has the time.
        reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end])[:-1]
        piece, step, ns = _free_time(calls.steps, np.maximum(start, reach), end, covered)
        parts.append(_label(view, calls, mine[piece], step, np.full(len(ns), group), ns))
        covered = join(covered, unite(start, end))
    return parts, covered


def _share_calls(
    view: TraceView, calls: HostCalls, tree: CallTree, mine: Whole, covered: Union
) -> tuple[_Part, Union]:
    """Share out what is not covered yet to the innermost calls of one thread."""
    del mine
    piece, step, ns = _free_time(calls.steps, tree.start_ns, tree.end_ns, covered)
    # What is free in an event, less what is free in its children, is its own.
    width = max(len(calls.steps), 1)
    key = piece * width + step
    above = tree.parent[piece]
    called = np.flatnonzero(above >= 0)
    own = ns.copy()
    at = np.searchsorted(key, above[called] * width + step[called])
    np.subtract.at(own, at, ns[called])
    rows = calls.tree.row[tree.row[piece]]
    group = _classify(view, rows)
    group = np.where(calls.is_loading[tree.row[piece]], _LOADING, group)
    roots = tree.parent < 0
    union = join(covered, unite(tree.start_ns[roots], tree.end_ns[roots]))
    return _label(view, calls, rows, step, group, own), union


def _classify(view: TraceView, rows: Whole) -> Whole:
    """Tell the class of calls of the host; in a trace without any device, ops compute."""
    category = view.events.category[rows]
    is_bare = not len(view.all_device_rows) and not len(view.all_call_rows)
    group = np.where(is_bare & (category == Category.CPU_OP), _COMPUTE, _HOST)
    group[np.isin(category, (Category.RUNTIME, Category.DRIVER))] = _LAUNCH
    group[np.isin(rows, find_syncs(view))] = _SYNC
    group[np.isin(rows, find_host_collectives(view))] = _COMM
    return group.astype(np.int64)


def _free_time(
    steps: Steps, start: Whole, end: Whole, covered: Union
) -> tuple[Whole, Whole, Whole]:
    """Cut intervals at the bounds of steps, and measure what of each is not covered yet.

    Returns:
        For each piece the position of its interval, that of its step, and the free time in ns;
        in the order of the intervals, then of the steps.
    """
    first = np.searchsorted(steps.end, start, side="right")
    last = np.searchsorted(steps.start, end, side="left")
    count = np.where(end > start, np.maximum(last - first, 0), 0)
    piece = np.repeat(np.arange(len(start), dtype=np.int64), count)
    offset = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    step = (first[piece] + offset).astype(np.int64)
    begins = np.maximum(start[piece], steps.start[step])
    ends = np.minimum(end[piece], steps.end[step])
    free = ends - begins - (cover(covered, ends) - cover(covered, begins))
    return piece, step, free.astype(np.int64)


def _label(
    view: TraceView, calls: HostCalls, rows: Whole, step: Whole, group: Whole, ns: Whole
) -> _Part:
    kind = calls.kind[view.events.category[rows]]
    return _Part(step, kind, calls.labels[1][view.events.name[rows]], group, ns)


def _share_rest(steps: Steps, parts: list[_Part]) -> _Part:
    """Return what nobody has of each step."""
    rest = steps.end - steps.start
    rest = rest.copy()
    for part in parts:
        np.subtract.at(rest, part.step, part.ns)
    index = np.arange(len(steps), dtype=np.int64)
    none = np.full(len(steps), -1, dtype=np.int64)
    return _Part(index, none, none, np.full(len(steps), _IDLE), rest)


def _make_table(view: TraceView, calls: HostCalls, parts: list[_Part]) -> Table:
    step, kind, label, group, ns = (
        np.concatenate([getattr(part, name) for part in parts]).astype(np.int64)
        for name in ("step", "kind", "label", "group", "ns")
    )
    labels = calls.labels[0]
    width = len(labels) + 1
    key = ((step * len(CLASSES) + group) * (len(KINDS) + 1) + kind + 1) * width + label + 1
    found, at = np.unique(key, return_inverse=True)
    total = np.zeros(len(found), dtype=np.int64)
    np.add.at(total, at, ns)
    kept = total > 0
    found, total = found[kept], total[kept]
    name, found = found % width - 1, found // width
    kind, found = found % (len(KINDS) + 1) - 1, found // (len(KINDS) + 1)
    return Table(
        {
            "rank": view.rank_column(len(total)),
            "step": calls.steps.number[found // len(CLASSES)],
            "class": text_column([CLASSES[one] for one in (found % len(CLASSES)).tolist()]),
            "kind": text_column(["rest" if one < 0 else KINDS[one] for one in kind.tolist()]),
            "name": text_column([REST_NAME if one < 0 else labels[one] for one in name.tolist()]),
            "ns": total,
        }
    )


SHARES = Metric("diff_shares", SHARE_COLUMNS, measure_shares, is_default=False)
