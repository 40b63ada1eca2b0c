"""Tests that need no assumption of how figures are spread; pure, and exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import comb
from typing import Final

_EXCEPTION_SHARE: Final = 10


def higher_chance(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the chance that ``new`` lies above ``old`` as it does, if nothing had changed.

    This is a precedence test: among all orders of old and new figures, which are equally likely
    when both are of one kind, it counts those in which no more old figures than here lie above
    nearly all new ones. One new figure in ten may be low, as for a step that happened to be quick.
    Returns 1.0 when there is nothing to compare.
    """
    count, before = len(new), len(old)
    if not count or not before:
        return 1.0
    exceptions = count // _EXCEPTION_SHARE
    bar = sorted(new)[exceptions]
    above = before - bisect_left(sorted(old), bar)
    # The old figures above the m-th highest new one, of `count` new and `before` old ones.
    place = count - exceptions
    orders = sum(
        comb(place - 1 + j, j) * comb(before - j + exceptions, exceptions) for j in range(above + 1)
    )
    return orders / comb(count + before, count)


def less_often_chance(few: int, of: int, many: int, out_of: int) -> float:
    """Return the chance of at most ``few`` hits in ``of`` looks, when ``many`` are in ``out_of``.

    Fisher's exact test, one-sided: both are looks at one thing, if nothing differs.
    """
    hits, looks = few + many, of + out_of
    lowest = max(0, hits - out_of)
    total = comb(looks, hits)
    return sum(comb(of, k) * comb(out_of, hits - k) for k in range(lowest, few + 1)) / total
