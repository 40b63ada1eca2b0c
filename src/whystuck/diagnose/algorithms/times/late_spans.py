"""Ranks that are slower than their peers, in step after step, from one step on or for a while.

The input is the own time of each rank in each *stretch*, a step or two. What one rank, or a few,
take longer than the slowest of the others is what the others wait for. The span is searched in
which that happens nearly always; then it must be long, steady, and no work of chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, expm1, lgamma, log

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

# Fewer stretches than this say nothing about a habit, fewer than these about one that came or went.
_MIN_STRETCHES = 10
_MIN_PART = 20
_MIN_STEPS_PART = 36
# A span of this share of the run is all of it.
_WHOLE = 0.9
# Ranks that may be slow are looked for in so many stretches at a time.
_WINDOW = 20
# The ranks must be the last in so many of the stretches: what is done every third step is no habit,
_MIN_SHARE_LAST = 0.7
# ... and that by chance no more often than this, were the last ones drawn by lot,
_MAX_CHANCE = 1e-3
# ... and in each of so many parts of the span,
_PARTS = 4
# ... by so many times the error of the mean excess; more where the span was chosen of a longer run.
_MIN_ERRORS = 4.0
_MIN_ERRORS_PART = 6.0
# A stretch in which the ranks are not the last ends a span, unless two others make up for it.
_MISS = -2
_MAX_USUAL = 3.0
_MAX_REPEATED = 0.99
_MIN_LOST_NS = 5_000_000
_MIN_LOST_SHARE = 0.03


@dataclass(frozen=True)
class LateSpan:
    """The ``columns`` that were slower than all others, from stretch ``first`` to ``last``.

    ``share_last`` is in which share of these stretches they were, ``lost_ns`` what the others
    waited for them alone in all of these.
    """

    columns: tuple[int, ...]
    first: int
    last: int
    share_last: float
    lost_ns: float


def find_late_span(total_ns: Times, steps: Counts) -> LateSpan | None:
    """Find the columns that cost the others most.

    Args:
        total_ns: Own times, a line for each stretch, a column for each rank.
        steps: How many steps each stretch has; one where that is not known.

    Returns:
        The columns and when they were slow; None when none are, or nothing can be told.
    """
    if len(total_ns) < _MIN_STRETCHES or total_ns.shape[1] == 1:
        return None
    found = (_judge(total_ns, steps, columns) for columns in _list_candidates(total_ns))
    return max((one for one in found if one), key=lambda one: one.lost_ns, default=None)


def _list_candidates(total_ns: Times) -> Iterator[tuple[int, ...]]:
    """Yield the slowest column of each window, and those set apart from the rest, once each."""
    most = max(1, total_ns.shape[1] // 2)
    seen: set[tuple[int, ...]] = set()
    for start in range(0, max(1, len(total_ns) - _WINDOW // 2), _WINDOW // 2):
        usual_ns = np.median(total_ns[start : start + _WINDOW], axis=0)
        order = np.argsort(-usual_ns, kind="stable")
        gaps_ns = -np.diff(usual_ns[order])[:most]
        for count in {1, int(gaps_ns.argmax()) + 1}:
            columns = tuple(sorted(order[:count].tolist()))
            if columns not in seen:
                seen.add(columns)
                yield columns


def _judge(total_ns: Times, steps: Counts, columns: tuple[int, ...]) -> LateSpan | None:
    """Find when some columns were slower than the others, if they were so long and steadily."""
    is_chosen = np.isin(np.arange(total_ns.shape[1]), columns)
    others_ns = total_ns[:, ~is_chosen].max(axis=1)
    excess_ns = total_ns[:, is_chosen].min(axis=1) - others_ns
    floor_ns = max(_MIN_LOST_NS, _MIN_LOST_SHARE * float(np.median(others_ns)))
    first, last = _find_span(excess_ns > floor_ns)
    here_ns = excess_ns[first : last + 1]
    count, wins = len(here_ns), int((here_ns > floor_ns).sum())
    is_whole = count >= _WHOLE * len(total_ns)
    is_long = count >= _MIN_PART and int(steps[first : last + 1].sum()) >= _MIN_STEPS_PART
    if not (is_long or (is_whole and count >= _MIN_STRETCHES)) or wins < _MIN_SHARE_LAST * count:
        return None
    if not _is_steady(here_ns, _MIN_ERRORS if is_whole else _MIN_ERRORS_PART):
        return None
    if any(np.median(part) < floor_ns for part in np.array_split(here_ns, _PARTS)):
        return None
    if _find_chance(wins, count, total_ns.shape[1], len(columns)) > _MAX_CHANCE:
        return None
    return LateSpan(columns, first, last, wins / count, float(here_ns.sum()))


def _find_span(is_last: Flags) -> tuple[int, int]:
    """Return the first and the last place of the span with most hits, misses counted twice."""
    best, best_first, best_last = 0, 0, -1
    total, first = 0, 0
    for place, hit in enumerate(is_last.tolist()):
        total += 1 if hit else _MISS
        if total <= 0:
            total, first = 0, place + 1
        elif total > best:
            best, best_first, best_last = total, first, place
    return best_first, best_last


def _find_chance(wins: int, count: int, ranks: int, chosen: int) -> float:
    """Return how likely any set of so many ranks is the last so often, by lot in each stretch."""
    sets = _log_choose(ranks, chosen)
    hit, miss = -sets, log(-expm1(-sets))
    return sum(
        exp(sets + _log_choose(count, k) + k * hit + (count - k) * miss)
        for k in range(wins, count + 1)
    )


def _log_choose(count: int, chosen: int) -> float:
    return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)


def _is_steady(excess_ns: Times, errors: float) -> bool:
    """Return whether an excess is many times its error, slow changes of the machine included.

    A rank whose core is taken for some seconds is slower than its peers in many steps on end, and
    these count as few. What is rare and long counts no more than some usual excesses.
    """
    bound_ns = _MAX_USUAL * float(np.median(excess_ns))
    clipped = np.clip(excess_ns, -bound_ns, bound_ns)
    apart = clipped - clipped.mean()
    power = float((apart**2).sum())
    if not power:
        return True
    repeated = min(max(float((apart[1:] * apart[:-1]).sum()) / power, 0.0), _MAX_REPEATED)
    error_ns = np.sqrt(power / len(apart) ** 2 * (1 + repeated) / (1 - repeated))
    return bool(clipped.mean() >= errors * error_ns)
