"""Whether two sets of samples differ: permutation tests, and control of many tests at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

_SEED = 20260813
_DRAWS = 9999
# With fewer ways to deal out the samples, no permutation test can tell anything at 5 %.
_LEAST_WAYS = 70
_CHUNK = 500
_BOOTSTRAPS = 4000
_LEAST_BOOTSTRAP = 5
# A difference this many times its error is none of chance: the samples of a run are equal.
_SURE = 1e12


@dataclass(frozen=True)
class Samples:
    """Totals of steps (or of ranks) of two runs: rows are samples, columns are names."""

    a: Real
    b: Real

    @property
    def is_enough(self) -> bool:
        """Whether anything can be said about chance: a single sample has no spread."""
        return min(len(self.a), len(self.b)) >= 2  # noqa: PLR2004


def compare_samples(samples: Samples) -> Real:
    """Tell how likely it is that each column differs by chance only.

    A permutation test of the larger of two standardised statistics: the difference of the means,
    and that of the mean places in the order of all samples, which single large values do not
    move. With few samples, where no permutation test can be significant, Welch's t test.

    Args:
        samples: Two samples or more of each run; what was measured in one has no part in another.

    Returns:
        A p value for each column; NaN where a run has a single sample.
    """
    a, b = samples.a, samples.b
    if not samples.is_enough:
        return np.full(a.shape[1], np.nan)
    welch = _test_welch(a, b)
    ways = math.comb(len(a) + len(b), len(a))
    if ways < _LEAST_WAYS:
        return welch
    found, floor = _test_by_dealing(np.r_[a, b], len(a), ways)
    # Draws cannot tell smaller values than their number allows: the tail of t goes on from there.
    return np.where(found <= floor * 1.001, np.minimum(found, np.maximum(welch, 1e-12)), found)


def compare_pairs(a: Real, b: Real) -> Real:
    """Tell how likely it is that pairs (the same rank in two runs) differ by chance: a t test.

    Args:
        a: A row for each rank of the first run.
        b: The same ranks of the second.

    Returns:
        A p value for each column; NaN with a single pair.
    """
    gap = b - a
    if len(gap) < 2:  # noqa: PLR2004 - a single pair has no spread
        return np.full(gap.shape[1], np.nan)
    middle = np.abs(gap.mean(axis=0))
    error = gap.std(axis=0, ddof=1) / math.sqrt(len(gap))
    made = np.where(middle > error * _SURE, 0.0, 1.0)
    for column in np.flatnonzero((error > 0) & (made > 0)).tolist():
        made[column] = 2 * tail_of_t(float(middle[column] / error[column]), len(gap) - 1)
    return made


def adjust(p: Real) -> Real:
    """Turn p values into those of Benjamini and Hochberg (1995), which bound false discoveries.

    Args:
        p: One for each test; NaN stays.

    Returns:
        The adjusted values: those up to 0.05 hold at most 5 % false ones on average.
    """
    made = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    if len(order):
        scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
        made[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return made


def bound_difference(a: Real, b: Real) -> tuple[float, float] | None:
    """Return the 95 % interval of the difference of means, b less a; None with single samples.

    By bootstrap (percentiles), with few samples by Welch's t.
    """
    count = min(len(a), len(b))
    if count < 2:  # noqa: PLR2004 - a single sample has no spread
        return None
    middle = float(b.mean() - a.mean())
    if count < _LEAST_BOOTSTRAP:
        variance = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
        half = _find_quantile(_degrees(a, b)) * math.sqrt(sum(variance))
        return middle - half, middle + half
    rng = np.random.default_rng(_SEED)
    of_a, of_b = (rng.choice(one, (_BOOTSTRAPS, len(one))).mean(axis=1) for one in (a, b))
    low, high = np.percentile(of_b - of_a, (2.5, 97.5))
    return float(low), float(high)


def count_block(values: Real) -> int:
    """Return how many samples in a row go together, as what follows each other is alike.

    From the correlation of neighbours r: (1 + r) / (1 - r) samples tell as much as one.
    """
    count = len(values)
    centred = values - values.mean() if count else values
    power = float((centred**2).sum())
    if count < 10 or power <= 0:  # noqa: PLR2004 - fewer tell nothing of it
        return 1
    r = float((centred[1:] * centred[:-1]).sum()) / power
    if r <= 2 / math.sqrt(count):
        return 1
    return max(1, min(math.ceil((1 + r) / (1 - r)) if r < 1 else count, count // 5))


def merge_blocks(values: Real, size: int) -> Real:
    """Average each ``size`` samples in a row; the last block may be larger."""
    if size <= 1:
        return values
    starts = np.arange(len(values) // size) * size
    lengths = np.diff(np.r_[starts, len(values)])
    merged: Real = np.add.reduceat(values, starts, axis=0) / lengths[:, None]
    return merged


def _deal(total: int, first: int, ways: int) -> Real:
    """Return ways to deal out samples: a row each, 1 for those of the first run."""
    if ways <= _DRAWS:
        rows = np.zeros((ways, total))
        for row, chosen in enumerate(combinations(range(total), first)):
            rows[row, list(chosen)] = 1
        return rows
    rng = np.random.default_rng(_SEED)
    order = np.argsort(rng.random((_DRAWS, total)), axis=1)
    return (order < first).astype(np.float64)


def _test_by_dealing(values: Real, first: int, ways: int) -> tuple[Real, float]:
    places = _place(values)
    dealt = _deal(len(values), first, ways)
    is_exact = ways <= _DRAWS
    own = np.zeros((1, len(values)))
    own[0, :first] = 1
    scales = [_scale(one, first) for one in (values, places)]
    target = _statistic(own, (values, places), scales)[0]
    hits = np.zeros(values.shape[1])
    for start in range(0, len(dealt), _CHUNK):
        chunk = _statistic(dealt[start : start + _CHUNK], (values, places), scales)
        hits += (chunk >= target * (1 - 1e-9)).sum(axis=0)
    if is_exact:
        return hits / len(dealt), 0.0
    return (hits + 1) / (len(dealt) + 1), 1 / (len(dealt) + 1)


def _scale(values: Real, first: int) -> Real:
    """Return the standard deviation of sums of the dealt samples, exactly, 0 as infinite."""
    total = len(values)
    spread = np.sqrt(values.var(axis=0, ddof=1) * first * (total - first) / total)
    scale: Real = np.where(spread > np.abs(values).max(axis=0, initial=0) * 1e-12, spread, np.inf)
    return scale


def _statistic(dealt: Real, kinds: tuple[Real, Real], scales: list[Real]) -> Real:
    first = dealt[0].sum()
    found = [
        np.abs(dealt @ values - first * values.mean(axis=0)) / scale
        for values, scale in zip(kinds, scales, strict=True)
    ]
    larger: Real = np.maximum(found[0], found[1])
    return larger


def _place(values: Real) -> Real:
    """Return the place of each sample in its column, those that are equal in the middle of them."""
    made = np.empty_like(values)
    for column in range(values.shape[1]):
        _, at, count = np.unique(values[:, column], return_inverse=True, return_counts=True)
        made[:, column] = (np.cumsum(count) - (count - 1) / 2)[at]
    return made


def _degrees(a: Real, b: Real) -> float:
    one, other = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    below = one**2 / (len(a) - 1) + other**2 / (len(b) - 1)
    return float((one + other) ** 2 / below) if below > 0 else float(len(a) + len(b) - 2)


def _test_welch(a: Real, b: Real) -> Real:
    made = np.ones(a.shape[1])
    for column in range(a.shape[1]):
        one, other = a[:, column], b[:, column]
        gap = float(abs(one.mean() - other.mean()))
        error = math.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
        if gap > error * _SURE:
            made[column] = 0.0
        elif error > 0:
            made[column] = 2 * tail_of_t(gap / error, _degrees(one, other))
    return made


def tail_of_t(value: float, degrees: float) -> float:
    """Return the probability that Student's t is above a value of 0 or more."""
    return 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value))


def _find_quantile(degrees: float) -> float:
    """Return the t that 2.5 % are above, by bisection."""
    low, high = 0.0, 2.0
    while tail_of_t(high, degrees) > 0.025:  # noqa: PLR2004 - a half of 5 %
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of_t(middle, degrees) > 0.025 else (low, middle)  # noqa: PLR2004
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / (1 + step * d)
            c = 1 + step / c
            value *= c * d
        if abs(c * d - 1) < 1e-14:  # noqa: PLR2004 - the precision of floats
            break
    return front * value / a
