"""Calls of the host as trees: who called whom on each thread, and the time spent in each itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class CallTree:
    """Events of the host, nested. All arrays are of one length and in the order of the tree.

    ``row`` are positions in the events; they are ordered by thread, and by time in each thread,
    so that a parent comes before its children. ``thread`` numbers the threads from 0.
    ``parent`` is a position in these arrays, -1 for those that nobody called. ``start_ns`` and
    ``end_ns`` are times; an event that ends after its parent is cut there. ``self_ns`` is the
    time in which no child ran.
    """

    row: Whole
    thread: Whole
    parent: Whole
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
        rows: The events to nest.

    Returns:
        The tree of these events.
    """
    start, end, on = start_ns[rows], np.maximum(end_ns[rows], start_ns[rows]), thread[rows]
    order = np.lexsort((-end, start, on))
    start, end, on = start[order], end[order], on[order]
    parent, end = _nest(start, end, on)
    spent = end - start
    inside = np.zeros(len(rows), dtype=np.int64)
    called = parent >= 0
    np.add.at(inside, parent[called], spent[called])
    return CallTree(rows[order], on, parent, start, end, spent - inside)


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


def _nest(start: Whole, end: Whole, on: Whole) -> tuple[Whole, Whole]:
    """Find the parent of each event, and its end, not after that of the parent."""
    parent, is_lost = _find_parents(start, end, on)
    is_lost |= (parent >= 0) & (end > end[parent])
    # Where an event ends after its caller, depths are wrong from there on: that thread is walked.
    for thread in np.unique(on[is_lost]).tolist():
        mine = slice(*np.searchsorted(on, [thread, thread + 1]).tolist())
        above, end[mine] = _walk(start[mine], end[mine])
        parent[mine] = np.where(above >= 0, above + mine.start, -1)
    return parent, end


def _find_parents(start: Whole, end: Whole, on: Whole) -> tuple[Whole, NDArray[np.bool_]]:
    """Find parents as if none ended after its parent, and who shows that it is not so."""
    count = len(start)
    if not count:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    begins, ends = _order_times(start, end, on)
    index = np.arange(count, dtype=np.int64)
    # So many are open when it begins: those that began before, less those that are over.
    depth = index - np.searchsorted(np.sort(ends), begins, side="right")
    # The parent is the last one before that is one level up.
    key = depth * count + index
    sorted_key = np.sort(key)
    at = np.maximum(np.searchsorted(sorted_key, key - count) - 1, 0)
    found = sorted_key[at]
    candidate = found % count
    is_open = (found < key) & (found // count == depth - 1) & (on[candidate] == on)
    is_open &= ends[candidate] > begins
    return np.where((depth > 0) & is_open, candidate, -1), (depth > 0) & ~is_open


def _order_times(start: Whole, end: Whole, on: Whole) -> tuple[Whole, Whole]:
    """Return numbers that order starts and ends by thread, then time; small for any times.

    What has no length ends as if it had the shortest.
    """
    times, place = np.unique(np.r_[start, np.maximum(end, start + 1)], return_inverse=True)
    base = on * (len(times) + 1)
    return base + place[: len(start)], base + place[len(start) :]


def _walk(start: Whole, end: Whole) -> tuple[Whole, Whole]:
    """Nest the events of one thread one by one: slow, and right whatever their ends are."""
    parents: list[int] = []
    stack: list[tuple[int, int]] = []
    ends = end.tolist()
    for index, begin in enumerate(start.tolist()):
        while stack and stack[-1][1] <= begin:
            stack.pop()
        parents.append(stack[-1][0] if stack else -1)
        if stack and stack[-1][1] < ends[index]:
            ends[index] = stack[-1][1]
        stack.append((index, max(ends[index], begin + 1)))
    return np.array(parents, dtype=np.int64), np.array(ends, dtype=np.int64)


def measure_depth(tree: CallTree) -> Whole:
    """Count the callers of each event, and theirs."""
    up = tree.parent.copy()
    depth = np.where(up >= 0, 1, 0).astype(np.int64)
    # Jumps to callers double in length; the depth counts how far they reach.
    while (called := np.flatnonzero(up >= 0)).size:
        at = up[called]
        depth[called] += depth[at]
        up[called] = up[at]
    return depth


def end_subtrees(tree: CallTree) -> Whole:
    """Return, for each event, the position behind the last one that was called below it."""
    begins, ends = _order_times(tree.start_ns, tree.end_ns, tree.thread)
    # In the order of the tree, what is below an event comes behind it, and begins before its end.
    return np.searchsorted(begins, ends, side="left").astype(np.int64)
