"""Calls of the host as trees: who called whom on each thread, and the time spent in each itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.arrays.nesting import nest

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class CallTree:
    """Events of the host, nested. All arrays are of one length and in the order of the tree.

    ``row`` are positions in the events; they are ordered by thread, and by time in each thread,
    so that a parent comes before its children. ``thread`` numbers the threads from 0.
    ``parent`` is a position in these arrays, -1 for those that nobody called, and ``depth`` the
    number of callers. ``start_ns`` and ``end_ns`` are times; an event that ends after its parent
    is cut there. ``self_ns`` is the time in which no child ran.
    """

    row: Whole
    thread: Whole
    parent: Whole
    depth: Whole
    start_ns: Whole
    end_ns: Whole
    self_ns: Whole

    def __len__(self) -> int:
        return len(self.row)


def build_tree(start_ns: Whole, end_ns: Whole, thread: Whole, rows: Whole) -> CallTree:
    """Nest events: one that begins inside another on its thread was called by it.

    Args:
        start_ns: Where each event of the trace begins.
        end_ns: Where it ends.
        thread: The number of its thread.
        rows: The events to nest; of two that have the same time, the first holds the other.

    Returns:
        The tree of these events.
    """
    start = start_ns[rows]
    found = nest(thread[rows], start, np.maximum(end_ns[rows], start))
    return CallTree(
        row=rows[found.row],
        thread=found.thread,
        parent=found.parent,
        depth=found.depth,
        start_ns=found.start,
        end_ns=found.end,
        self_ns=found.self_ns,
    )


def inherit(tree: CallTree, own: Whole) -> Whole:
    """Pass values down: that of the nearest caller that has one, itself first; -1 where none."""
    value, up = own.copy(), tree.parent.copy()
    # Jumps to callers double in length, so that this takes log2 of the depth.
    while True:
        open_ = (value < 0) & (up >= 0)
        if not open_.any():
            return value
        at = up[open_]
        value[open_], up[open_] = value[at], up[at]


def end_subtrees(tree: CallTree) -> Whole:
    """Return, for each event, the position behind the last one that was called below it."""
    begins, ends = _order_times(tree)
    # In the order of the tree, what is below an event comes behind it, and begins before its end.
    return np.maximum(np.searchsorted(begins, ends, side="left"), np.arange(len(tree)) + 1)


def _order_times(tree: CallTree) -> tuple[Whole, Whole]:
    """Return numbers that order starts and ends by thread, then time; small for any times."""
    times, place = np.unique(np.r_[tree.start_ns, tree.end_ns], return_inverse=True)
    base = tree.thread * (len(times) + 1)
    count = len(tree)
    return base + place[:count], base + place[count:]
