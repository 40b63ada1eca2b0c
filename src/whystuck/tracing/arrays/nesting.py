"""What lies in what: events of one thread to a tree, and the deepest event at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Places = NDArray[np.int64]

# A level takes some 5 us, however little lies there: of more, it is faster to go up by jumps.
_MOST_LEVELS = 2_000
# Around most times, few events have ended. With more, it is faster to search for one that has not.
_MOST_STEPS = 32
_BEGIN_LATER, _END = 1, 0  # at one time, what ends does so before the next begins


@dataclass(frozen=True)
class Nesting:
    """Events by thread, start and falling end, each with the one that it lies in.

    All but ``row`` and ``thread`` are in this order. An event that reaches out of the one that it
    began in is cut at that one's end, as rounded times are off by some.

    Attributes:
        row: Where each was in the arrays that were given.
        thread: A number for each thread.
        start: In ns.
        end: In ns, not after that of the parent.
        parent: The place of the one that it lies in, -1 for the outermost.
        depth: How many it lies in.
    """

    row: Places
    thread: Places
    start: Times
    end: Times
    parent: Places
    depth: Places

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def root(self) -> Places:
        """The place of the outermost event around each."""
        return self.outermost(np.ones(len(self), dtype=np.bool_))

    @cached_property
    def self_ns(self) -> Times:
        """The time of each that lies in no other inside it."""
        length = self.end - self.start
        inner = self.parent >= 0
        taken = np.bincount(self.parent[inner], weights=length[inner], minlength=len(self))
        left: Times = length - np.rint(taken).astype(np.int64)
        return left

    def outermost(self, is_meant: NDArray[np.bool_]) -> Places:
        """Return the outermost that is meant of each event and those around it, or -1.

        Args:
            is_meant: For each place, whether it counts.

        Returns:
            Places, found level by level from the outermost.
        """
        return self._descend(is_meant, is_outer=True)

    def innermost(self, is_meant: NDArray[np.bool_]) -> Places:
        """Return the innermost that is meant of each event and those around it, or -1."""
        return self._descend(is_meant, is_outer=False)

    def is_outermost_of(self, kind: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Tell which events lie in no other of the same kind, such as a recursive call."""
        order = np.lexsort((np.arange(len(self)), kind))
        # Ranks keep thread, kind and time in one number: the ends so far of one thread and kind.
        times = np.sort(np.r_[self.start, self.end])
        start = np.searchsorted(times, self.start[order], side="right")
        end = np.searchsorted(times, self.end[order], side="right")
        both = (
            np.r_[True, np.diff(kind[order]) != 0] | np.r_[True, np.diff(self.thread[order]) != 0]
        )
        base = np.cumsum(both) * (len(times) + 1)
        reach = np.r_[np.int64(-1), np.maximum.accumulate(base + end)[:-1]]
        is_outer = np.empty(len(self), dtype=np.bool_)
        is_outer[order] = reach <= base + start
        return is_outer

    def _descend(self, is_meant: NDArray[np.bool_], *, is_outer: bool) -> Places:
        if self.depth.max(initial=0) > _MOST_LEVELS:
            return self._climb(is_meant, is_outer=is_outer)
        found = np.where(is_meant, np.arange(len(self)), -1)
        for places in self._inner_levels:
            above = found[self.parent[places]]
            if is_outer:
                found[places] = np.where(above >= 0, above, found[places])
            else:
                found[places] = np.where(found[places] >= 0, found[places], above)
        return found

    def _climb(self, is_meant: NDArray[np.bool_], *, is_outer: bool) -> Places:
        """Find the same where there are very many levels: each step goes up twice as many."""
        found = np.where(is_meant, np.arange(len(self)), -1)
        above = self.parent.copy()
        left = np.flatnonzero(above >= 0)
        while len(left):
            higher = found[above[left]]
            if is_outer:
                found[left] = np.where(higher >= 0, higher, found[left])
            else:
                found[left] = np.where(found[left] >= 0, found[left], higher)
            above[left] = above[above[left]]
            left = left[above[left] >= 0]
        return found

    @cached_property
    def _inner_levels(self) -> list[Places]:
        order = np.argsort(self.depth, kind="stable")
        bounds = np.cumsum(np.bincount(self.depth, minlength=1))
        return np.split(order, bounds)[1:-1]

    def deepest(self, thread: Places, at: Times) -> Places:
        """Find the deepest event that holds a time.

        Args:
            thread: A thread for each time; -1 for none.
            at: Times in ns.

        Returns:
            A place for each, -1 where no event of that thread holds it.
        """
        place = np.full(len(at), -1, dtype=np.int64)
        if not len(self) or not len(at):
            return place
        known = np.flatnonzero((thread >= 0) & (thread <= self.thread[-1]))
        if not len(known):
            return place
        place[known] = self._last_begun(thread[known], at[known])
        late = np.flatnonzero(place >= 0)
        for _ in range(_MOST_STEPS):
            if not len(late):
                return place
            here = place[late]
            # An event of no length holds its own time.
            over = (self.end[here] <= at[late]) & (self.start[here] < at[late])
            late = late[over]
            place[late] = self.parent[place[late]]
            late = late[place[late] >= 0]
        found = _find_last_above(self.end, place[late], at[late])
        # One of another thread is around nothing here.
        is_around = (found >= 0) & (self.thread[found] == thread[late])
        is_held = (self.end[place[late]] > at[late]) | (self.start[place[late]] >= at[late])
        place[late] = np.where(is_held, place[late], np.where(is_around, found, -1))
        return place

    def _last_begun(self, thread: Places, at: Times) -> Places:
        low = np.searchsorted(self.thread, thread, side="left")
        if int(self.thread[-1]) == 0:
            last = np.searchsorted(self.start, at, side="right") - 1
        else:  # thread and rank of the time in one number, which no time can make too large
            times = np.sort(self.start)
            keys = self.thread * (len(self) + 1) + np.searchsorted(times, self.start, side="right")
            wanted = thread * (len(self) + 1) + np.searchsorted(times, at, side="right")
            last = np.searchsorted(keys, wanted, side="right") - 1
        return np.where(last >= low, last, -1)


def _find_last_above(values: Times, last: Places, limit: Times) -> Places:
    """Find the last place up to each of some at which a value is above a limit, or -1.

    It goes up and down a tree of maxima: as many steps as the number of values has digits.
    """
    levels = [values]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = np.full((len(below) + 1) // 2 * 2, np.iinfo(np.int64).min)
        pairs[: len(below)] = below
        levels.append(pairs.reshape(-1, 2).max(axis=1))
    behind = last + 1
    node, height = np.full(len(last), -1), np.full(len(last), -1)
    for level, highest in enumerate(levels):
        is_odd = (height < 0) & (behind % 2 == 1)
        is_hit = is_odd & (highest[np.maximum(behind - 1, 0)] > limit)
        node[is_hit], height[is_hit] = behind[is_hit] - 1, level
        behind = behind // 2
    for level in range(len(levels) - 2, -1, -1):
        inner = np.flatnonzero(height > level)
        right = np.minimum(2 * node[inner] + 1, len(levels[level]) - 1)
        node[inner] = np.where(levels[level][right] > limit[inner], right, 2 * node[inner])
    return node


def nest(thread: Places, start: Times, end: Times) -> Nesting:
    """Find the event that each lies in.

    Args:
        thread: A number from 0 for each event; only events of one thread can hold each other.
        start: In ns.
        end: In ns, not before the start.

    Returns:
        The tree of each thread. Of two that begin together the longer holds the other, of two
        that also end together the first; an event of no length holds none.
    """
    row = np.lexsort((-end, start, thread))
    thread, start, end = thread[row].astype(np.int64), start[row], end[row]
    if not len(row):
        empty = np.empty(0, dtype=np.int64)
        return Nesting(row, thread, start, end, empty, empty)
    if ((start[1:] >= end[:-1]) | (thread[1:] != thread[:-1])).all():
        return Nesting(row, thread, start, end, np.full(len(row), -1), np.zeros_like(row))
    parent, depth = _nest_proper(thread, start, end)
    is_wrong = (parent >= 0) & ((end > end[parent]) | (start >= end[parent]))
    if is_wrong.any():
        end = end.copy()
        parent, depth = parent.copy(), depth.copy()
        for one in np.unique(thread[is_wrong]).tolist():
            low, high = np.searchsorted(thread, [one, one + 1])
            _nest_cut(start, end, parent, depth, (int(low), int(high)))
    return Nesting(row, thread, start, end, parent, depth)


def _nest_proper(thread: Places, start: Times, end: Times) -> tuple[Places, Places]:
    """Nest events of which none reaches out of another: no loop, but one sort of the edges."""
    count = len(start)
    places = np.arange(count)
    # A begin comes after all ends at that time; then how many are open at a begin is its depth.
    edge = np.lexsort(
        (
            np.repeat((_BEGIN_LATER, _END), count),
            np.concatenate((start, np.maximum(end, start))),
            np.concatenate((thread, thread)),
        )
    )
    is_begin = edge < count
    # An event of no length would end before it begins: it is never open.
    is_point = end == start
    change = np.where(is_begin, 1, -1)
    change[is_point[edge % count]] = 0
    level = np.cumsum(change)
    depth = np.empty(count, dtype=np.int64)
    depth[edge[is_begin]] = level[is_begin]
    depth = np.where(is_point, depth, depth - 1)
    # The parent is the last one before it that is one level higher.
    by_depth = np.lexsort((places, depth))
    by_depth = by_depth[~is_point[by_depth]]
    keys = depth[by_depth] * count + by_depth
    at = np.searchsorted(keys, (depth - 1) * count + places, side="left") - 1
    parent = np.where(depth > 0, by_depth[np.maximum(at, 0)] if len(by_depth) else -1, -1)
    return parent, depth


def _nest_cut(
    start: Times, end: Times, parent: Places, depth: Places, bounds: tuple[int, int]
) -> None:
    """Nest events of one thread of which some reach out of others; changes the arrays."""
    low, high = bounds
    starts, ends = start[low:high].tolist(), end[low:high].tolist()
    parents, depths = [], []
    stack: list[int] = []
    for here, (begin, finish) in enumerate(zip(starts, ends, strict=True)):
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        depths.append(len(stack))
        parents.append(low + stack[-1] if stack else -1)
        if stack and finish > ends[stack[-1]]:
            ends[here] = ends[stack[-1]]
        stack.append(here)
    end[low:high] = ends
    parent[low:high] = parents
    depth[low:high] = depths
