"""The work of devices under events of the host, by the names of those."""

from __future__ import annotations

import numpy as np

from whystuck.tracing.host_tree import HostTree, Rows
from whystuck.tracing.view import TraceView


def sum_work_under(view: TraceView, tree: HostTree, at: Rows) -> tuple[Rows, Rows]:
    """Add up the work of devices in the window under events of each name.

    Args:
        view: The trace.
        tree: Events of the host, or annotations of devices.
        at: For each of ``view.device_rows`` the innermost place in the tree around it, or -1.

    Returns:
        The time in ns, and how many rows of work, indexed by the name of the events around. Work
        under two events of one name counts once.
    """
    events, nesting = view.events, tree.nesting
    time = np.zeros(len(view.trace.names), dtype=np.int64)
    count = np.zeros(len(view.trace.names), dtype=np.int64)
    name = events.name[tree.row]
    is_first = nesting.is_outermost_of(name)
    duration = events.duration_ns[view.device_rows]
    while (at >= 0).any():
        kept = at >= 0
        at, duration = at[kept], duration[kept]
        counted = is_first[at]
        np.add.at(time, name[at[counted]], duration[counted])
        np.add.at(count, name[at[counted]], 1)
        at = nesting.parent[at]
    return time, count
