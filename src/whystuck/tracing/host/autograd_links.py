"""Which node of autograd ran backward what an op ran forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Category, Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.host.trees import Rows, thread_keys
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class PassLinks:
    """Pairs of rows of the trace: an op, and the node of autograd that it made."""

    forward: Rows
    backward: Rows

    def __len__(self) -> int:
        return len(self.forward)


def link_passes(view: TraceView) -> PassLinks:
    """Link the ops of forward passes with nodes of autograd in the window, by sequence number.

    Of several ops with a number the one that began last made the node: the number goes up when a
    node is made. Numbers are counted by thread. A node tells the thread of its op by a number that
    the trace does not explain; it is taken to be the thread with whose numbers most nodes agree.

    Args:
        view: The trace.

    Returns:
        A pair for each node whose op is in the trace.
    """
    events = view.events
    sequence, thread = view.trace.get("autograd_sequence"), view.trace.get("forward_thread")
    rows = sequence.event[events.category[sequence.event] == Category.CPU_OP]
    number = sequence.at(rows).astype(np.int64)
    told = thread.at(rows, 0).astype(np.int64)
    known = number >= 0
    rows, number, told = rows[known], number[known], told[known]
    is_node = np.fromiter(
        (name.startswith(_NODE) for name in view.trace.names), np.bool_, len(view.trace.names)
    )[events.name[rows]]
    if view.cut_ns is not None:
        is_node &= events.start_ns[rows] < view.cut_ns
    forward = np.flatnonzero((told == 0) & ~is_node)
    nodes = np.flatnonzero(is_node)
    keys = thread_keys(events, rows)
    links: list[NDArray[np.int64]] = []
    for one in np.unique(told[nodes]).tolist():
        mine = nodes[told[nodes] == one]
        links.append(_match_thread(events.start_ns[rows], number, keys, forward, mine))
    pairs = np.concatenate(links, axis=1) if links else np.empty((2, 0), dtype=np.int64)
    order = np.argsort(rows[pairs[1]], kind="stable")
    return PassLinks(rows[pairs[0]][order], rows[pairs[1]][order])


def _match_thread(
    start: NDArray[np.int64],
    number: NDArray[np.int64],
    keys: NDArray[np.int64],
    forward: Rows,
    nodes: Rows,
) -> NDArray[np.int64]:
    """Match nodes with the ops of that thread which has most of their numbers."""
    best = np.empty((2, 0), dtype=np.int64)
    for thread in np.unique(keys[forward]).tolist():
        ops = forward[keys[forward] == thread]
        ops = ops[np.lexsort((start[ops], number[ops]))]
        # The last op of that number which began before the node.
        last = np.searchsorted(number[ops], number[nodes], side="right") - 1
        found = (last >= 0) & (number[ops[last]] == number[nodes])
        found &= start[ops[last]] <= start[nodes]
        if found.sum() > best.shape[1]:
            best = np.stack((ops[last[found]], nodes[found]))
    return best


def backward_work(view: TraceView, links: PassLinks) -> NDArray[np.int64]:
    """Return the time of the work of devices that each node launched, in ns."""
    tree = view.ops
    place = tree.places_of(links.backward)
    is_node = np.zeros(len(tree), dtype=np.bool_)
    is_node[place[place >= 0]] = True
    return _work_within(view, is_node)[place] if len(tree) else place * 0


def _work_within(view: TraceView, is_meant: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Add up the work of devices under each of some places, by the innermost of them."""
    tree, at = view.ops, view.launching_ops
    inner = tree.nesting.innermost(is_meant)
    holder = np.where(at >= 0, inner[at], -1) if len(tree) else at
    time = np.zeros(len(tree), dtype=np.int64)
    duration = view.events.duration_ns[view.device_rows]
    np.add.at(time, holder[holder >= 0], duration[holder >= 0])
    return time


_COLUMNS = (
    "rank",
    "op",
    "node",
    "count",
    "forward_host_ns",
    "backward_host_ns",
    "forward_device_ns",
    "backward_device_ns",
)


def measure_passes(view: TraceView, options: TraceOptions) -> Table:
    """Measure ops and their nodes of autograd side by side.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row an op and node, those that took longest first, by the time of devices, then of the
        host. The forward time is that of the op which made the node, and not of ops around it.
    """
    del options
    events, links = view.events, link_passes(view)
    tree = view.ops
    place = tree.places_of(links.forward)
    is_op = np.zeros(len(tree), dtype=np.bool_)
    is_op[place[place >= 0]] = True
    forward_work = _work_within(view, is_op)[place] if len(tree) else place * 0
    op, node = events.name[links.forward], events.name[links.backward]
    groups = group_rows(op, node)
    nodes = pick_texts(view.trace.names, node[groups.first])
    nodes[:] = [text.removeprefix(_NODE) for text in nodes.tolist()]
    columns = (
        view.rank_column(len(groups)),
        pick_texts(view.trace.names, op[groups.first]),
        nodes,
        groups.count,
        groups.sum(events.duration_ns[links.forward]),
        groups.sum(events.duration_ns[links.backward]),
        groups.sum(forward_work),
        groups.sum(backward_work(view, links)),
    )
    table = Table.of(_COLUMNS, columns)
    device = table["forward_device_ns"] + table["backward_device_ns"]
    host = table["forward_host_ns"] + table["backward_host_ns"]
    return table.take(np.lexsort((-host, -device)))


METRIC = Metric(
    "autograd", _COLUMNS, measure_passes, is_default=False, detail=Detail.LEAN | Detail.AUTOGRAD
)
