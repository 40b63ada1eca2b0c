"""The work of devices under events of the host, by the names of those."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.host.trees import HostTree, Rows
from whystuck.tracing.view import TraceView


def sum_under(
    tree: HostTree, kind: NDArray[np.int64], at: Rows, values: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add values up under events of each kind.

    Args:
        tree: The events.
        kind: A number from 0 for each place in the tree.
        at: For each value the innermost place around it, or -1.
        values: What to add up.

    Returns:
        The sums, and how many were added, by kind. What is under two events of one kind counts
        once.
    """
    size = int(kind.max()) + 1 if len(kind) else 0
    total, count = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    is_first = tree.nesting.is_outermost_of(kind)
    while (at >= 0).any():
        kept = at >= 0
        at, values = at[kept], values[kept]
        counted = is_first[at]
        np.add.at(total, kind[at[counted]], values[counted])
        np.add.at(count, kind[at[counted]], 1)
        at = tree.nesting.parent[at]
    return total, count


def sum_work_under(
    view: TraceView, tree: HostTree, kind: NDArray[np.int64], at: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add up the work of devices in the window under events of each kind.

    Args:
        view: The trace.
        tree: Events of the host, or annotations of devices.
        kind: A number from 0 for each place in the tree.
        at: For each of ``view.device_rows`` the innermost place in the tree around it, or -1.

    Returns:
        The time in ns, and how many rows of work, by kind, as `sum_under`.
    """
    return sum_under(tree, kind, at, view.events.duration_ns[view.device_rows])
