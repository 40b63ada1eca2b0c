"""Aligns the calls of ranks that do not number them, by what they are and when they ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

# All members of a collective end together, on their own clocks. How far off that may be: this, or
# this share of the time from one collective to the next, beyond which it could as well be that one.
_APART_NS = 20_000.0
_APART_SHARE = 0.1
# Of all calls, how many must keep to that.
_MOST = 0.9
# By how many calls a rank may be ahead of another one at most.
_MOST_SHIFT = 512
_SAMPLE = 256
# A second alignment counts when it pairs nearly as large a share of what could be paired.
_NEARLY = 0.9
# How much further apart its ends must be, so that it is the worse one: by this over the root of
# the number of calls, as the medians of few calls scatter.
_WORSE = 8.0
# What a clock may gain on another one.
_MOST_DRIFT = 1e-4
_TRIED = 8
_FEW = 8

UNCLEAR = "its calls do not end together with those of others"
UNLIKE = "its calls are not those of others"
UNPAIRED = "no other rank has this call"


@dataclass(frozen=True)
class Aligned:
    """``place``: ranks by collectives, the position among the calls of the rank, or -1.

    ``reasons`` say why calls of a rank have no place.
    """

    place: Whole
    reasons: list[str]


@dataclass(frozen=True)
class _Calls:
    """Calls of a rank, in order: what they are, when they ended, which all members end together."""

    kind: Column
    end: Column
    meets: NDArray[np.bool_]


@dataclass(frozen=True)
class _Fit:
    """How calls of two ranks fit: ``found`` are positions in the other's calls, -1 where none.

    ``share`` is how many of those could be paired that lie in the time that both traces have.
    """

    found: Whole
    count: int
    share: float
    apart_ns: float


def align_calls(
    kinds: list[Column],
    ends: list[Column],
    is_meeting: NDArray[np.bool_],
    clocks: list[float] | None = None,
) -> Aligned:
    """Align calls that are in order on each rank.

    The most common sequence of kinds is what others are aligned with. Calls of one place are of
    one kind, and those that all members end together have ends as far apart as the clocks of their
    ranks, throughout. Where ranks have equal sequences and this holds, the k-th calls belong
    together. Otherwise calls that end together do, on clocks whose distance is found by trying
    which call may be the first; where more than one distance fits, nothing is aligned.

    Args:
        kinds: For each rank the kinds of its calls, by start.
        ends: When they ended, on the clock of the rank, in ns.
        is_meeting: For each kind, whether all members end such a call together.
        clocks: How far the clock of each rank is ahead, in ns, where other groups tell it (NaN
            where they do not).

    Returns:
        The places. Ranks that fit nowhere have none.
    """
    ranks = [_Calls(kind, end, is_meeting[kind]) for kind, end in zip(kinds, ends, strict=True)]
    lead = _choose_lead(kinds)
    width = len(kinds[lead])
    limit = _find_limit(ends[lead])
    place = np.full((len(kinds), width), -1, dtype=np.int64)
    reasons = [UNPAIRED] * len(kinds)
    shifts = _find_periods(kinds[lead])
    for rank, own in enumerate(ranks):
        apart = clocks[rank] - clocks[lead] if clocks else float("nan")
        found: Whole | str = np.arange(width)
        if rank != lead and not _is_plain(ranks[lead], own, limit, shifts):
            found = _align_one(ranks[lead], own, limit, apart)
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


def _find_limit(ends: Column) -> float:
    period = float(np.median(np.diff(np.sort(ends)))) if len(ends) > 1 else 0.0
    return max(_APART_NS, _APART_SHARE * period)


def _find_periods(kinds: Column) -> list[int]:
    """Return the first shifts by which a sequence of kinds is like itself."""
    found: list[int] = []
    for shift in range(1, min(_MOST_SHIFT, len(kinds) // 2) + 1):
        if np.array_equal(kinds[shift:], kinds[:-shift]):
            found.append(shift)
        if len(found) == _TRIED // 2:
            break
    return found


def _is_plain(lead: _Calls, own: _Calls, limit: float, shifts: list[int]) -> bool:
    """Tell whether the k-th calls belong together, and those of no shifted step do so better."""
    if not np.array_equal(lead.kind, own.kind):
        return False
    if not _end_together(lead, own, limit) and not _is_noisy(lead, own, limit):
        return False
    theirs, mine = lead.end[lead.meets], own.end[own.meets]
    plain = max(_scatter(mine - theirs), 1.0)
    # Few calls scatter as little by chance.
    shifts = [one for one in shifts if len(theirs) == len(lead.end) >= one + _FEW]
    moved = [_scatter(mine[shift:] - theirs[:-shift]) for shift in shifts]
    moved += [_scatter(mine[:-shift] - theirs[shift:]) for shift in shifts]
    return all(plain < _count_worse(len(theirs)) * max(one, 1.0) for one in moved)


def _is_noisy(lead: _Calls, own: _Calls, limit: float) -> bool:
    """Tell ends that scatter from call to call, as on busy hosts, from ends with a step between.

    Such ends tell nothing against the order of the calls, and that is the same.
    """
    apart = (own.end - lead.end)[lead.meets].astype(np.float64)
    return len(apart) > 1 and float(np.median(np.abs(np.diff(apart)))) > limit


def _scatter(apart: Column) -> float:
    return float(np.median(np.abs(apart - np.median(apart))))


def _count_worse(calls: int) -> float:
    return 1 + _WORSE / sqrt(max(calls, 1))


def _align_one(lead: _Calls, own: _Calls, limit: float, clock: float) -> Whole | str:
    """Return for each call of the lead that of the other, or why there is none."""
    if not lead.meets.any() or not own.meets.any():
        return UNLIKE
    if np.isfinite(clock):
        known = _fit(lead, own, clock, limit)
        return known.found if known.share >= _NEARLY else UNLIKE
    tried = [_fit(lead, own, apart, limit) for apart in _list_distances(lead, own, limit)]
    fewest = (min(int(lead.meets.sum()), int(own.meets.sum())) + 1) // 2
    most = max((fit.share for fit in tried), default=0.0)
    good = [fit for fit in tried if fit.count >= fewest and fit.share >= _NEARLY * most]
    if not good:
        return UNLIKE
    best = min(good, key=lambda fit: (fit.apart_ns, -fit.count))
    worse = _count_worse(best.count) * max(best.apart_ns, 1.0)
    is_clear = all(fit is best or fit.apart_ns >= worse for fit in good)
    return best.found if is_clear else UNCLEAR


def _end_together(lead: _Calls, own: _Calls, limit: float) -> bool:
    """Tell whether the ends of the k-th calls are as far apart throughout, but for a drift."""
    apart = (own.end - lead.end)[lead.meets].astype(np.float64)
    if len(apart) < 2:  # noqa: PLR2004 - one distance is as far as itself
        return True
    half = len(apart) // 2
    drift = np.linspace(-1, 1, len(apart)) * (np.median(apart[half:]) - np.median(apart[:half]))
    # A step in the middle is no drift: only what a clock may do is taken out.
    span = float(lead.end.max() - lead.end.min())
    apart -= np.clip(drift, -_MOST_DRIFT * span, _MOST_DRIFT * span)
    off = np.abs(apart - np.median(apart))
    return float(np.mean(off <= limit)) >= _MOST


def _list_distances(lead: _Calls, own: _Calls, limit: float) -> list[float]:
    """List by how much the clocks may differ: one distance for each call that may be the first."""
    theirs, mine = np.sort(lead.end[lead.meets]), np.sort(own.end[own.meets])
    sample = np.unique(np.linspace(0, len(mine) - 1, _SAMPLE).astype(np.int64))
    low, high = max(-_MOST_SHIFT, 1 - len(mine)), min(_MOST_SHIFT, len(theirs) - 1)
    distances: list[float] = []
    for shift in range(low, high + 1):
        other = sample + shift
        there = (other >= 0) & (other < len(theirs))
        # Where calls are lost in between, one half of the trace or the other is laid right.
        apart = mine[sample[there]] - theirs[other[there]]
        distances += np.quantile(apart, (0.25, 0.5, 0.75)).tolist() if len(apart) else []
    kept: list[float] = []
    for one in sorted(distances):
        if not kept or one - kept[-1] > limit:
            kept.append(one)
    return _choose_distances(theirs, mine[sample], kept, limit)


def _choose_distances(theirs: Column, mine: Column, kept: list[float], limit: float) -> list[float]:
    """Keep the distances at which calls of a sample end the closest to others."""
    tried: list[tuple[float, float]] = []
    for apart in kept:
        off = np.abs(theirs[_find_near(theirs, mine - apart)] + apart - mine)
        # A distance was that of one pair of calls: half of the sample tells how well it fits.
        if int((off <= 2 * limit).sum()) * 2 >= min(len(mine), len(theirs)):
            tried.append((float(np.quantile(off, 0.5, method="lower")), apart))
    return [apart for _, apart in sorted(tried)[:_TRIED]]


def _find_near(values: Column, wanted: Real) -> Whole:
    """Return the positions of the values next to those wanted; values ascend."""
    right = np.clip(np.searchsorted(values, wanted), 1, max(len(values) - 1, 1))
    right = np.minimum(right, len(values) - 1)
    left = np.maximum(right - 1, 0)
    is_left = np.abs(values[left] - wanted) <= np.abs(values[right] - wanted)
    return np.where(is_left, left, right)


def _fit(lead: _Calls, own: _Calls, apart: float, limit: float) -> _Fit:
    """Pair the calls that end together when the clocks are so far apart, or nearly so."""
    for _ in range(2):
        by_end = np.argsort(lead.end, kind="stable")
        near = by_end[_find_near(lead.end[by_end], own.end - apart)]
        off = own.end - apart - lead.end[near]
        is_pair = (np.abs(off) <= limit) & (lead.kind[near] == own.kind)
        used = is_pair & own.meets
        if used.any():
            # The distance was that of one pair of calls: take that of all.
            apart += float(np.median(off[used]))
    found = np.full(len(lead.kind), -1, dtype=np.int64)
    rows = np.flatnonzero(is_pair)
    found[near[rows]] = rows
    off_ns = float(np.median(np.abs(off[used]))) if used.any() else limit
    count = int((found >= 0).sum())
    return _Fit(found, count, count / _count_shared(lead.end, own.end - apart, limit), off_ns)


def _count_shared(theirs: Column, mine: Real, limit: float) -> int:
    """Count the calls that could be paired: in the time that both have, the fewer of both."""
    low = max(theirs.min(), mine.min()) - limit
    high = min(theirs.max(), mine.max()) + limit
    counts = [int(((ends >= low) & (ends <= high)).sum()) for ends in (theirs, mine)]
    return max(min(counts), 1)
