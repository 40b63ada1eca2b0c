"""Aligns the calls of ranks that do not number them, by what they are and when they ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

# All members of a collective end together. A rank whose ends scatter by more than this against
# those of another rank, and by more than this part of the time between two, is shifted.
_SCATTER_NS = 1_000_000
_SCATTER_SHARE = 0.1
# By how many calls a rank may be ahead of another one at most, or have other calls between.
_MOST_SHIFT = 512
_MOST_EDITS = 200
# The second best alignment must scatter by so many times as much as the best.
_CLEARLY = 4.0

SHIFTED = "its calls do not end together with those of others"
UNLIKE = "its calls are not in the order of those of others"
UNPAIRED = "no other rank has this call"


@dataclass(frozen=True)
class Aligned:
    """``place``: ranks by collectives, the position among the calls of the rank, or -1.

    ``reasons`` say why calls of a rank have no place.
    """

    place: Whole
    reasons: list[str]


def align_calls(kinds: list[Column], ends: list[Column], is_meeting: NDArray[np.bool_]) -> Aligned:
    """Align calls that are in order on each rank.

    The most common sequence of kinds is what others are aligned with. Calls of one place are of
    one kind. Where a sequence repeats itself, as those of steps do, several shifts fit; the one
    counts by which ends have the same distance throughout (the difference of two clocks).

    Args:
        kinds: For each rank the kinds of its calls, by start.
        ends: When they ended, on the clock of the rank, in ns.
        is_meeting: For each kind, whether all members end such a call together.

    Returns:
        The places. Ranks that fit nowhere have none.
    """
    lead = _choose_lead(kinds)
    width = len(kinds[lead])
    place = np.full((len(kinds), width), -1, dtype=np.int64)
    reasons = [UNPAIRED] * len(kinds)
    for rank, own in enumerate(kinds):
        if rank == lead:
            place[rank] = np.arange(width)
            continue
        found = _align_one((kinds[lead], ends[lead]), (own, ends[rank]), is_meeting[kinds[lead]])
        if isinstance(found, str):
            reasons[rank] = found
        else:
            place[rank] = found
    return Aligned(place, reasons)


def _choose_lead(kinds: list[Column]) -> int:
    texts = [one.tobytes() for one in kinds]
    counts = Counter(texts)
    # Of those that are equally common the longest, and then by content: not by who came first.
    best = max(counts, key=lambda text: (counts[text], len(text), text))
    return texts.index(best)


def _align_one(
    lead: tuple[Column, Column], own: tuple[Column, Column], meets: NDArray[np.bool_]
) -> Whole | str:
    """Return for each call of the lead that of the other, or why there is none."""
    plain = _shift(lead[0], own[0], 0) if len(lead[0]) == len(own[0]) else None
    limit = _find_limit(lead[1])
    if plain is not None and _scatter(lead[1], own[1], plain, meets) <= limit:
        return plain
    tried = {shift: _shift(lead[0], own[0], shift) for shift in _list_shifts(lead[0], own[0])}
    fits = {shift: found for shift, found in tried.items() if found is not None}
    if not fits:
        edited = _align_by_edits(lead[0], own[0])
        if edited is None or not (edited >= 0).any():
            return UNLIKE
        return _keep_together((lead[1], own[1]), edited, meets, limit)
    scatters = {shift: _scatter(lead[1], own[1], found, meets) for shift, found in fits.items()}
    best = min(scatters, key=lambda shift: scatters[shift])
    others = [value for shift, value in scatters.items() if shift != best]
    is_clear = not others or scatters[best] * _CLEARLY <= min(others)
    return fits[best] if is_clear and scatters[best] <= limit else SHIFTED


def _list_shifts(lead: Column, own: Column) -> range:
    low = max(-_MOST_SHIFT, 1 - len(own))
    return range(low, min(_MOST_SHIFT, len(lead) - 1) + 1)


def _shift(lead: Column, own: Column, shift: int) -> Whole | None:
    """Lay the first call of the other on that of the lead with number ``shift``; None if unlike."""
    begin, end = max(0, shift), min(len(lead), len(own) + shift)
    shortest = min(len(lead), len(own))
    if end - begin < (shortest + 1) // 2:
        return None
    if not np.array_equal(lead[begin:end], own[begin - shift : end - shift]):
        return None
    found = np.full(len(lead), -1, dtype=np.int64)
    found[begin:end] = np.arange(begin, end) - shift
    return found


def _find_limit(ends: Column) -> float:
    period = float(np.median(np.diff(np.sort(ends)))) if len(ends) > 1 else 0.0
    return max(_SCATTER_NS, _SCATTER_SHARE * period)


def _scatter(lead: Column, own: Column, found: Whole, meets: NDArray[np.bool_]) -> float:
    """Return how the distances of ends scatter: their median absolute deviation, in ns."""
    used = np.flatnonzero((found >= 0) & meets)
    if not len(used):
        return 0.0
    apart = own[found[used]] - lead[used]
    return float(np.median(np.abs(apart - np.median(apart))))


def _keep_together(
    ends: tuple[Column, Column], found: Whole, meets: NDArray[np.bool_], limit: float
) -> Whole | str:
    """Leave out pairs that are as far from ending together as calls of two collectives."""
    if _scatter(*ends, found, meets) > limit:
        return SHIFTED
    used = np.flatnonzero((found >= 0) & meets)
    apart = ends[1][found[used]] - ends[0][used]
    far = used[np.abs(apart - np.median(apart)) > limit]
    found = found.copy()
    found[far] = -1
    return found


def _align_by_edits(lead: Column, own: Column) -> Whole | None:
    """Align two sequences with the fewest calls left out (Myers 1986, the greedy algorithm)."""
    one, other = lead.tolist(), own.tolist()
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(_MOST_EDITS, len(one) + len(other)) + 1):
        trail.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
            )
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(one) and y >= len(other):
                return _walk_back(trail, (len(one), len(other)))
    return None


def _walk_back(trail: list[dict[int, int]], end: tuple[int, int]) -> Whole:
    x, y = end
    found = np.full(x, -1, dtype=np.int64)
    for edits in range(len(trail) - 1, -1, -1):
        reach, diagonal = trail[edits], x - y
        down = diagonal == -edits or (
            diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
        )
        before = diagonal + 1 if down else diagonal - 1
        from_x = reach[before] if edits else 0
        from_y = from_x - before if edits else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            found[x] = y
        x, y = from_x, from_y
    return found
