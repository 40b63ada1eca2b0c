"""How far the clocks of ranks are apart, from collectives that all members end together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.collectives.matched import GroupCalls, Matching

Real = NDArray[np.float64]
Whole = NDArray[np.int64]

# The median absolute deviation of a normal distribution, as a standard deviation.
_DEVIATION = 1.4826
# The standard error of a median over that of a mean.
_MEDIAN_LOSS = 1.2533
# Two standard deviations: the true offset lies within that in 95 of 100 cases.
_SURE = 2.0
# A drift counts when it is this many standard errors large.
_CLEAR_DRIFT = 5.0
_FEWEST_FOR_DRIFT = 20
_ROUNDS = 500
_PRECISE = 1e-12


@dataclass(frozen=True)
class Clocks:
    """The clock of each rank of a `Matching`, against that of the lowest rank it is linked with.

    A time of the rank minus ``offset_ns`` minus ``drift`` x (time - ``middle_ns``) is a time of the
    reference. ``error_ns`` is how far off that may be, NaN where nothing tells the offset, which is
    0 then. ``part`` numbers sets of ranks that are linked by collectives: times of different parts
    cannot be compared.
    """

    offset_ns: Real
    error_ns: Real
    drift: Real
    part: Whole
    middle_ns: float = 0.0

    def align(self, matching: Matching, group: GroupCalls, name: str) -> Real:
        """Return a column of times of a group on the clock of the reference."""
        times = matching.gather(group, name)
        times -= self.offset_ns[group.rank, None]
        if self.drift[group.rank].any():
            times -= self.drift[group.rank, None] * (times - self.middle_ns)
        return times


@dataclass(frozen=True)
class _Links:
    """What a group says about a rank: ``value`` with a standard error, the same unit for all."""

    rank: Whole
    group: Whole
    value: Real
    error: Real


def estimate_clocks(matching: Matching) -> Clocks:
    """Estimate how far the clocks of ranks are apart.

    In each group the distance of a rank's ends from the median end of all members is the offset of
    its clock, but for a constant of the group and for jitter. The median over all collectives is
    taken. Groups overlap, so that a least-squares solution over the graph of ranks and groups
    gives one offset for each rank. What the ends then scatter gives the error.

    A delay that a rank has in every end cannot be told from an offset; it is of the size of the
    jitter of a transfer. Jumps of a clock in the trace are not looked for, a steady drift is.

    Args:
        matching: The matched calls.

    Returns:
        The clocks.
    """
    count = len(matching.ranks)
    part = _find_parts(matching, count)
    zero = np.zeros(count)
    ends = [_gather_ends(matching, group) for group in matching.groups]
    offset = _solve(_link(matching, ends, zero), part)
    # Once more: on one clock the median end of a collective is what it should be.
    offset += _solve(_link(matching, ends, offset), part)
    drift, middle = _estimate_drift(matching, ends, offset, part)
    error = _estimate_error(matching, ends, (offset, drift, middle), part)
    return Clocks(offset, error, drift, part, middle)


def _gather_ends(matching: Matching, group: GroupCalls) -> Real:
    ends = matching.gather(group, "end_ns")
    met = ends[:, matching.meets(group)]
    return met if len(group.rank) > 1 else met[:, :0]


def take_median(values: Real, axis: int) -> Real:
    """Return the median of what is not NaN; NaN where all is."""
    if not values.shape[axis]:
        return np.full(values.shape[1 - axis], np.nan)
    has_gaps = np.isnan(values)
    if not has_gaps.any():
        return np.asarray(np.median(values, axis=axis), dtype=np.float64)
    # NaN are sorted to the end, so that the middle of the others is where their count says.
    ordered = np.sort(values, axis=axis)
    there = values.shape[axis] - has_gaps.sum(axis=axis)
    low = np.maximum((there - 1) // 2, 0)
    high = np.minimum(there // 2, values.shape[axis] - 1)
    if axis == 0:
        every = np.arange(values.shape[1])
        middle = (ordered[low, every] + ordered[high, every]) / 2
    else:
        every = np.arange(values.shape[0])
        middle = (ordered[every, low] + ordered[every, high]) / 2
    return np.where(there > 0, middle, np.nan)


def _link(matching: Matching, ends: list[Real], offset: Real) -> _Links:
    """Measure how far each rank's ends are from those of the members of its groups."""
    ranks, groups, values, errors = [], [], [], []
    for number, (group, end) in enumerate(zip(matching.groups, ends, strict=True)):
        if not end.shape[1]:
            continue
        apart = end - offset[group.rank, None]
        apart = apart - take_median(apart, axis=0)
        value = take_median(apart, axis=1)
        scatter = _DEVIATION * take_median(np.abs(apart - value[:, None]), axis=1)
        calls = np.maximum((~np.isnan(apart)).sum(axis=1), 1)
        ranks.append(group.rank)
        groups.append(np.full(len(group.rank), number))
        values.append(value)
        errors.append(_MEDIAN_LOSS * scatter / np.sqrt(calls))
    return _join(ranks, groups, values, errors)


def _join(
    ranks: list[Whole], groups: list[Whole], values: list[Real], errors: list[Real]
) -> _Links:
    if not ranks:
        return _Links(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
    value = np.concatenate(values)
    known = ~np.isnan(value)
    return _Links(
        np.concatenate(ranks)[known],
        np.concatenate(groups)[known],
        value[known],
        np.concatenate(errors)[known],
    )


def _solve(links: _Links, part: Whole) -> Real:
    """Solve value = x[rank] - constant of the group, weighted least squares, 0 at the references.

    Conjugate gradients on the graph of ranks and groups; the cost is that of the links.
    """
    count = len(part)
    groups = int(links.group.max(initial=-1)) + 1
    size = count + groups
    # Errors of nothing would give one link all the weight.
    floor = max(float(np.median(links.error)) if len(links.error) else 0.0, 1.0) / 10
    weight = 1 / np.maximum(links.error, floor) ** 2
    other = links.group + count

    def apply(x: Real) -> Real:
        return spread(weight * (x[links.rank] - x[other]))

    def spread(pull: Real) -> Real:
        up = np.bincount(links.rank, pull, size).astype(np.float64)
        return up - np.bincount(other, pull, size).astype(np.float64)

    target = spread(weight * links.value)
    diagonal = np.bincount(links.rank, weight, size) + np.bincount(other, weight, size)
    solution = _descend(apply, target, np.where(diagonal > 0, diagonal, 1.0))[:count]
    has_link = np.bincount(links.rank, minlength=count) > 0
    return np.where(has_link, solution - solution[part], 0.0)


def _descend(apply: Callable[[Real], Real], target: Real, diagonal: Real) -> Real:
    solution = np.zeros(len(target))
    rest = target.copy()
    step = rest / diagonal
    size = float(rest @ step)
    goal = size * _PRECISE**2
    for _ in range(_ROUNDS):
        if size <= goal:
            break
        image = apply(step)
        slope = float(step @ image)
        if slope <= 0:
            break
        along = size / slope
        solution += along * step
        rest -= along * image
        scaled = rest / diagonal
        size, last = float(rest @ scaled), size
        step = scaled + size / last * step
    return solution


def _find_parts(matching: Matching, count: int) -> Whole:
    """Number the sets of ranks that collectives link, each by its lowest rank."""
    part = np.arange(count, dtype=np.int64)
    while True:
        before = part.copy()
        for group in matching.groups:
            if matching.meets(group).any():
                part[group.rank] = part[group.rank].min()
        part = part[part]
        if (part == before).all():
            return part


def _estimate_drift(
    matching: Matching, ends: list[Real], offset: Real, part: Whole
) -> tuple[Real, float]:
    """Compare the ends of the first half of a trace with those of the second."""
    count = len(part)
    middles: list[float] = []
    ranks, groups, values, errors = [], [], [], []
    for number, (group, end) in enumerate(zip(matching.groups, ends, strict=True)):
        if end.shape[1] < _FEWEST_FOR_DRIFT:
            continue
        apart = end - offset[group.rank, None]
        moment = take_median(apart, axis=0)
        apart = apart - moment
        middles.append(float(np.median(moment)))
        order = np.argsort(moment)
        half = len(order) // 2
        early, late = order[:half], order[half:]
        distance = float(np.median(moment[late]) - np.median(moment[early]))
        if distance <= 0:
            continue
        change = take_median(apart[:, late], axis=1) - take_median(apart[:, early], axis=1)
        rest = apart[:, late] - take_median(apart[:, late], axis=1)[:, None]
        scatter = _DEVIATION * take_median(np.abs(rest), axis=1)
        ranks.append(group.rank)
        groups.append(np.full(len(group.rank), number))
        values.append(change / distance)
        errors.append(_MEDIAN_LOSS * scatter * 2 / np.sqrt(half) / distance)
    links = _join(ranks, groups, values, errors)
    # In parts of 10^-12, so that the floor of the weights is far below what matters.
    drift = _solve(_Links(links.rank, links.group, links.value * 1e12, links.error * 1e12), part)
    drift = drift / 1e12
    # Offsets are medians, so they are right in the middle of the trace.
    middle = float(np.median(middles)) if middles else 0.0
    noise = np.full(count, np.inf)
    np.minimum.at(noise, links.rank, links.error)
    return np.where(np.abs(drift) > _CLEAR_DRIFT * np.maximum(noise, 1e-9), drift, 0.0), middle


def _estimate_error(
    matching: Matching, ends: list[Real], clock: tuple[Real, Real, float], part: Whole
) -> Real:
    """Estimate the error of offsets from how ends scatter once they are on one clock."""
    offset, drift, middle = clock
    squares, calls = np.zeros(len(part)), np.zeros(len(part))
    for group, end in zip(matching.groups, ends, strict=True):
        if not end.shape[1]:
            continue
        apart = end - offset[group.rank, None]
        apart -= drift[group.rank, None] * (apart - middle)
        apart = apart - take_median(apart, axis=0)
        center = take_median(apart, axis=1)
        scatter = _DEVIATION * take_median(np.abs(apart - center[:, None]), axis=1)
        count = (~np.isnan(apart)).sum(axis=1)
        # What groups say about a rank may differ by more than the ends in each of them.
        squares[group.rank] += np.where(count > 0, count * (scatter**2 + center**2), 0.0)
        calls[group.rank] += count
    # Few ends scatter less than many would.
    variance = squares / np.maximum(calls, 1) * (1 + 2 / np.maximum(calls, 1))
    variance = np.where(calls > 0, variance, np.inf)
    error = _SURE * np.sqrt(variance + variance[part])
    # A reference is exact by definition; a rank that no collective links with others is not known.
    alone = np.bincount(part, minlength=len(part))[part] == 1
    error = np.where(part == np.arange(len(part)), 0.0, error)
    # Times come in whole ns, those of some tracers in whole µs.
    return np.where(alone | ~np.isfinite(error), np.nan, np.ceil(error) + 1)
