"""Where updates of the parameters are skipped again and again, and whose gradients are why."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whystuck.diagnose.algorithms.values.spread import find_origin, is_ordered
from whystuck.diagnose.policy import Policy
from whystuck.evidence.ops.inspection import Inspection, NotFinite, ScalerUpdate

# Each skip has a row of its own up to so many.
_MAX_SINGLE = 2000
# A scaler that is found is one that takes so many updates in a row.
_STEADY = 3
# A scale that begins at 2^32, the highest default there is, is found with fewer skips.
_MAX_SEARCH = 32
# After its first skips, so many updates still belong to its search.
_SEARCH_ROOM = 10
# Below this, the scale makes gradients smaller instead of larger.
_LEAST_SCALE = 1.0
# One rank is why updates are skipped when its values came first in this share of so many of them.
_SAME_SOURCE = 0.8
_MIN_SOURCES = 3
_MAX_LOOKED_AT = 20

# The source of a series, its number in the process, and the generation of the switch.
Key = tuple[str, int, int]


@dataclass(frozen=True)
class Series:
    """What is known of the updates of one series of one rank, in their order.

    ``rows`` has all skipped ones, or the first 2,000: after these, one row stands for some updates,
    of which any was skipped. Counts are exact at each row.
    """

    rank: int
    rows: tuple[ScalerUpdate, ...]

    @property
    def last(self) -> ScalerUpdate:
        """The newest update that is known of."""
        return self.rows[-1]

    def count_skips(self, updates: int) -> int:
        """Return how many of the first so many updates were skipped."""
        place = bisect_right(self.rows, updates, key=lambda row: row.updates)
        return self.rows[place - 1].skips if place else 0

    def count_exact(self) -> int:
        """Return how many of the first updates are known one by one."""
        place = bisect_right(self.rows, _MAX_SINGLE, key=lambda row: row.skips)
        return self.rows[place - 1].updates if place else 0

    def list_skips(self, end: int) -> frozenset[int]:
        """Return which of the first so many updates were skipped."""
        return frozenset(row.updates for row in self.rows if row.is_skipped and row.updates <= end)


@dataclass(frozen=True)
class Skipping:
    """A series in which too many updates are skipped, or whose scale falls on and on.

    ``skips`` of the last ``updates`` were skipped, ``first`` being the first of them.
    """

    series: Series
    updates: int
    skips: int
    first: ScalerUpdate
    is_falling: bool = False


def list_series(inspections: Iterable[Inspection]) -> dict[Key, dict[int, Series]]:
    """Return the updates of each series, by rank; of each, those since it was switched on last."""
    found: dict[tuple[str, int, int], dict[int, list[ScalerUpdate]]] = {}
    for inspection in inspections:
        newest: dict[tuple[str, int], int] = {}
        for row in inspection.scaler:
            newest[row.source, row.series] = row.generation
        for row in inspection.scaler:
            generation = newest[row.source, row.series]
            if row.updates and row.generation == generation:
                key = row.source, row.series, generation
                found.setdefault(key, {}).setdefault(inspection.rank, []).append(row)
    return {
        key: {rank: Series(rank, tuple(rows)) for rank, rows in by_rank.items()}
        for key, by_rank in found.items()
    }


def find_skipping(series: Series, policy: Policy) -> Skipping | None:
    """Judge the last updates of one series.

    The search for the scale at its start is left out.

    Args:
        series: Its updates.
        policy: The thresholds.

    Returns:
        What is wrong, or None.
    """
    end = series.last.updates
    searched, is_found = _measure_search(series.rows)
    start = max(end - policy.skip_window, searched)
    skips = series.last.skips - series.count_skips(start)
    is_many = skips >= policy.skip_min_count and skips >= policy.skipped_share * (end - start)
    if not (is_many or (skips and _is_falling(series, searched, policy))):
        return None
    shown = min(end, policy.skip_window)
    rows = [row for row in series.rows if row.is_skipped]
    late = [row for row in rows if row.updates > searched] or rows
    return Skipping(
        series,
        updates=shown,
        skips=series.last.skips - series.count_skips(end - shown),
        first=_find_begin(series, late if is_found else rows, policy) if is_many else late[0],
        is_falling=not is_many,
    )


def _measure_search(rows: Sequence[ScalerUpdate]) -> tuple[int, bool]:
    """Return how many of the first updates belong to the search for the scale, and if it was found.

    A new scaler begins high: its first updates overflow until it fits, and some soon after.
    """
    first = rows[0]
    if first.updates != 1 or first.scale is None or first.scale != (first.init or first.scale):
        return 0, False
    skipped = {row.updates: row.scale for row in rows if row.is_skipped}
    count = 0
    while count < _MAX_SEARCH and (skipped.get(count + 1) or 0.0) > _LEAST_SCALE:
        count += 1
    if count + 1 in skipped:
        return count, False  # it is too low or too many, and goes on
    steady, number = 0, count
    while steady < _STEADY and number < min(count + _SEARCH_ROOM, rows[-1].updates):
        number += 1
        steady = 0 if number in skipped else steady + 1
    return number, steady >= _STEADY


def _is_falling(series: Series, searched: int, policy: Policy) -> bool:
    """Tell whether skips have brought the scale below 1, and it has not grown since."""
    scales = [row.scale for row in series.rows if row.scale is not None]
    skips = series.last.skips - series.count_skips(searched)
    return (
        bool(scales)
        and scales[-1] < _LEAST_SCALE <= scales[0]
        and scales[-1] == min(scales)
        and skips >= policy.skip_min_count
    )


def _find_begin(series: Series, rows: Sequence[ScalerUpdate], policy: Policy) -> ScalerUpdate:
    """Return the skip from which on there are most more than the threshold allows."""
    total, end = series.last.skips, series.last.updates

    def excess(row: ScalerUpdate) -> float:
        return (total - row.skips) - policy.skipped_share * (end - row.updates)

    return max(rows, key=excess)


def compare_skips(by_rank: Mapping[int, Series]) -> dict[int, frozenset[int]]:
    """Return the updates that a rank skipped and a peer made, by rank; empty where all agree.

    Only updates that all ranks have decided on are compared, as far as each of them is known.
    """
    end = min(series.count_exact() for series in by_rank.values())
    skips = {rank: series.list_skips(end) for rank, series in by_rank.items()}
    common = frozenset.intersection(*skips.values())
    return {rank: odd for rank, numbers in skips.items() if (odd := numbers - common)}


def are_connected(by_rank: Mapping[int, Series]) -> bool:
    """Return whether ranks communicate between two updates, as far as ops were looked at.

    Models that are trained apart have nothing to agree on.
    """
    skipped = [[row for row in series.rows if row.is_skipped] for series in by_rank.values()]
    return all(not rows or any(row.last_op >= row.first_op for row in rows) for rows in skipped)


def find_source(
    inspections: Sequence[Inspection],
    by_rank: Mapping[int, Series],
    since: int,
    members_by_group: Mapping[str, frozenset[int]],
) -> tuple[frozenset[int], NotFinite] | None:
    """Find ranks that alone gave values which are not finite, in most of the skipped updates.

    Args:
        inspections: What was seen of each rank.
        by_rank: The series of each rank.
        since: The number of the first update that is looked at.
        members_by_group: The ranks of each group that is known, by its name.

    Returns:
        The ranks, and the first op into which they gave some; None when they are not always the
        same, or all.
    """
    rows = {
        rank: {row.updates: row for row in series.rows if row.is_skipped and row.updates >= since}
        for rank, series in by_rank.items()
    }
    looked = [_Looked(one, rows[one.rank]) for one in inspections if one.rank in rows]
    numbers = sorted({number for found in rows.values() for number in found})[:_MAX_LOOKED_AT]
    sources: list[tuple[frozenset[int], NotFinite]] = []
    for number in numbers:
        parts = [part for one in looked if (part := one.cut(number)) is not None]
        origin = find_origin(parts, members_by_group) if len(parts) == len(inspections) else None
        if origin is not None:
            ranks = frozenset(one.rank for one in origin.first)
            is_sure = is_ordered(origin.first) and not origin.is_made_by_op
            who = ranks if is_sure and not origin.is_everywhere else frozenset[int]()
            sources.append((who, min(origin.first, key=lambda one: one.rank)))
    if len(sources) < _MIN_SOURCES:
        return None
    ranks, times = Counter(ranks for ranks, _ in sources).most_common(1)[0]
    if not ranks or times < _SAME_SOURCE * len(sources):
        return None
    return ranks, next(first for who, first in sources if who == ranks)


class _Looked:
    """What was not finite on one rank, by the updates that it skipped."""

    def __init__(self, inspection: Inspection, rows: Mapping[int, ScalerUpdate]) -> None:
        self._inspection = inspection
        self._rows = rows
        self._events = sorted(inspection.not_finite, key=lambda one: one.number)

    def cut(self, number: int) -> Inspection | None:
        """Return what belongs to one update alone; None where the rank has not skipped it."""
        row = self._rows.get(number)
        if row is None:
            return None
        first = bisect_left(self._events, row.first_op, key=lambda one: one.number)
        end = bisect_right(self._events, row.last_op, key=lambda one: one.number)
        return replace(self._inspection, not_finite=tuple(self._events[first:end]), scaler=())
