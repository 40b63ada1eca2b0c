"""Which ranks keep the others waiting throughout, if any does."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.collectives.clocks import take_median
from whystuck.tracing.collectives.matched import Matching
from whystuck.tracing.collectives.skew import Arrivals, measure_lateness
from whystuck.tracing.diff.stats import tail_of_t

Real = NDArray[np.float64]
Whole = NDArray[np.int64]

# A rank is named when fair arrivals would put one as often among the late as it was with at most
# this probability, over all ranks and scales that were tried.
_SURE = 0.001
# And when what it cost is this share of the traced time ...
_MUCH = 0.01
# ... or a part of that, and many times what any of its peers cost.
_SOME = 0.001
_FAR_AHEAD = 10.0
# Lateness below the first of these is noise of launches; the others look for lateness that is
# rare, but larger than what is common.
_SCALES_NS = (20e3, 100e3, 500e3, 2.5e6, 12.5e6, 62.5e6)
# Late are those that are at least half as late as the latest.
_NEAR_LATEST = 0.5
# A cause is told when it makes up at least this part of the lateness.
_MOST_OF_IT = 0.5
_MOST_NAMED_SHARE = 0.5
# Few collectives cannot be as sure as that. A rank is probable when fair arrivals would put one
# last as often with at most this probability, ...
_PROBABLE = 0.07
# ... would make it so much and so evenly the last with at most this one, ...
_EVEN = 0.001
# ... and when what it cost is this share of the traced time.
_PROBABLE_SHARE = 0.05
# Collectives count in which any rank is at least this part as late as it is beyond all others.
_NOTED = 0.1
# Of fewer, chance makes one of many ranks the last of all too easily.
_LEAST_CALLS = 5


class Straggler(NamedTuple):
    """A rank that is late throughout.

    ``rank`` is its position in `Matching.ranks`; ``late_ns`` is its lateness of its own making, and
    ``share`` what that is of the traced time. ``cause`` is ``gpu`` where its device worked longer
    than those of peers, ``host`` where it got its work later, else ``unknown``.
    """

    rank: int
    late_ns: float
    share: float
    times_late: int
    collectives: int
    p_value: float
    cause: str


@dataclass(frozen=True)
class _Lateness:
    """Lateness of ranks, one value a rank and collective of peers, only where any is late.

    ``judged`` counts the collectives of each rank, also those where none is.
    """

    rank: Whole
    column: Whole
    late_ns: Real
    longer_ns: Real
    launch_ns: Real
    columns: int
    judged: Whole


class Evidence:
    """Gathers the lateness of ranks, group by group."""

    def __init__(self, matching: Matching, role: Whole) -> None:
        """Start with nothing.

        Args:
            matching: The matched calls.
            role: The role of each of its ranks.
        """
        self._matching, self._role = matching, role
        self._parts: list[tuple[Whole, Whole, Real, Real, Real]] = []
        self._columns = 0
        self._judged = np.zeros(len(matching.ranks), dtype=np.int64)

    def add(self, arrivals: Arrivals) -> None:
        """Add the collectives of a group."""
        late, longer = measure_lateness(self._matching, arrivals, self._role)
        self._judged[arrivals.group.rank] += (~np.isnan(late)).sum(axis=1)
        high = np.where(np.isnan(late), 0.0, late).max(axis=0, initial=0.0)
        # Where nobody is late, there is nothing to look at.
        matter = np.flatnonzero(high >= _SCALES_NS[0])
        late, longer = late[:, matter], longer[:, matter]
        launch = _compare_launches(self._matching, arrivals, matter)
        peers = self._role[arrivals.group.rank]
        for kind in np.unique(peers).tolist():
            mine = np.flatnonzero(peers == kind)
            row, column = np.nonzero(~np.isnan(late[mine]))
            place = (mine[row], column)
            rank = arrivals.group.rank[mine[row]]
            column = column + self._columns
            self._parts.append((rank, column, late[place], longer[place], launch[place]))
            self._columns += len(matter)

    def join(self) -> _Lateness:
        """Return all that was added."""
        blank = (np.empty(0, np.int64), np.empty(0, np.int64), *(np.empty(0) for _ in range(3)))
        rank, column, late, longer, launch = zip(blank, *self._parts, strict=True)
        return _Lateness(
            np.concatenate(rank),
            np.concatenate(column),
            np.concatenate(late),
            np.concatenate(longer),
            np.concatenate(launch),
            self._columns,
            self._judged,
        )


def find_stragglers(gathered: Evidence, span_ns: Real) -> list[Straggler]:
    """Find the ranks that are late throughout.

    Under fair arrivals each member of a role is as likely as any other to be among the late of a
    collective. How often it was is compared with that by a binomial test, with the mean chance
    over collectives (Hoeffding 1956: never too small a p-value), and the p-value is multiplied by
    the number of ranks and of scales (Bonferroni). A rank that is named is taken out, and the rest
    is looked at again. One long stop, however long, names nobody. Where this names nobody, and so
    few collectives are there that it could not, a rank that is last nearly always is found by how
    even its lateness is; its p-value then is larger than that of any other.

    Args:
        gathered: The lateness of ranks in all groups.
        span_ns: For each rank the time that its collectives span.

    Returns:
        The stragglers, the worst first; none when arrivals are fair, or peers are not seen.
    """
    evidence = gathered.join()
    found: list[Straggler] = []
    named = np.zeros(len(span_ns), dtype=np.bool_)
    tested = max(len(np.unique(evidence.rank)), 1)
    while named.sum() <= _MOST_NAMED_SHARE * tested:
        worst = _find_worst(evidence, named, span_ns)
        if worst is None:
            break
        found.append(worst)
        named[worst.rank] = True
    if not found:
        found = _find_probable(evidence, span_ns)
    return _recount(evidence, found, span_ns)


def _recount(evidence: _Lateness, found: list[Straggler], span_ns: Real) -> list[Straggler]:
    """Count what each cost against those that are not named, and put the worst first."""
    shape = (len(span_ns), evidence.columns)
    named = np.zeros(len(span_ns), dtype=np.bool_)
    named[[one.rank for one in found]] = True
    made = []
    for one in found:
        kept = np.flatnonzero(~named[evidence.rank] | (evidence.rank == one.rank))
        late = evidence.late_ns[kept]
        cost = float(_count_cost(evidence.rank[kept], evidence.column[kept], late, shape)[one.rank])
        span = float(span_ns[one.rank])
        share = cost / span if span > 0 else float("nan")
        made.append(one._replace(late_ns=cost, share=share))
    return sorted(made, key=lambda one: (-one.late_ns, one.rank))


def _compare_launches(matching: Matching, arrivals: Arrivals, columns: Whole) -> Real:
    """Return how much later each was launched than in the middle of the others, on one clock."""
    launch = matching.gather(arrivals.group, "launch_ns", columns)
    begun = matching.gather(arrivals.group, "start_ns", columns)
    on_clock = launch + (arrivals.start[:, columns] - begun)
    return on_clock - take_median(on_clock, axis=0)


def _find_worst(evidence: _Lateness, named: NDArray[np.bool_], span_ns: Real) -> Straggler | None:
    """Return the rank that fair arrivals explain least, among those that cost enough."""
    left = np.flatnonzero(~named[evidence.rank])
    rank, column, late = evidence.rank[left], evidence.column[left], evidence.late_ns[left]
    count = len(named)
    high = np.zeros(evidence.columns)
    np.maximum.at(high, column, late)
    size = np.bincount(column, minlength=evidence.columns)
    is_late = late >= np.maximum(_NEAR_LATEST * high[column], 1.0)
    many = np.bincount(column, is_late, minlength=evidence.columns)
    chance = many / np.maximum(size, 1)
    cost = _count_cost(rank, column, late, (count, evidence.columns))
    candidates = np.flatnonzero(_is_costly(cost, named, span_ns, np.unique(rank)))
    best: Straggler | None = None
    for one in candidates.tolist():
        mine = left[rank == one]
        found = _test(
            (high[column[rank == one]], chance[column[rank == one]], is_late[rank == one]),
            len(np.unique(rank)),
        )
        if found[0] > _SURE or (best and (found[0], -cost[one]) >= (best.p_value, -best.late_ns)):
            continue
        hits = mine[is_late[rank == one]]
        best = Straggler(
            rank=one,
            late_ns=float(cost[one]),
            share=float("nan"),
            times_late=found[1],
            collectives=found[2],
            p_value=found[0],
            cause=_tell_cause(evidence, hits),
        )
    return best


def _find_probable(evidence: _Lateness, span_ns: Real) -> list[Straggler]:
    """Return the rank that probably is late throughout; nothing where none stands out."""
    shape = (len(span_ns), evidence.columns)
    late = np.full(shape, np.nan)
    late[evidence.rank, evidence.column] = evidence.late_ns
    cost = _count_cost(evidence.rank, evidence.column, evidence.late_ns, shape)
    if not cost.any():
        return []
    one = int(cost.argmax())
    # Lateness beyond that of the next latest: fair arrivals make it negative as often, or oftener.
    mine = np.flatnonzero(~np.isnan(late[one]))
    others = np.delete(late[:, mine], one, axis=0)
    size = (~np.isnan(others)).sum(axis=0) + 1
    next_late = np.where(np.isnan(others), 0.0, others).max(axis=0, initial=0.0)
    ahead = late[one, mine] - next_late
    counted = np.maximum(late[one, mine], next_late) >= _NOTED * ahead.mean()
    calls, hits = int(counted.sum()), int((ahead[counted] > 0).sum())
    if calls < _LEAST_CALLS or cost[one] < _PROBABLE_SHARE * span_ns[one]:
        return []
    ranks = len(np.unique(evidence.rank))
    p_value = min(1.0, _tail(calls, hits, float((1 / size[counted]).mean())) * ranks)
    # All collectives, not only those that count: large ones alone always look even.
    ahead = np.r_[ahead, np.zeros(max(int(evidence.judged[one]) - len(ahead), 0))]
    error = float(ahead.std(ddof=1)) / sqrt(len(ahead))
    even = tail_of_t(float(ahead.mean()) / error, len(ahead) - 1) if error > 0 else 0.0
    if p_value <= _SURE or p_value > _PROBABLE or even * ranks > _EVEN:
        return []
    rows = np.flatnonzero((evidence.rank == one) & (evidence.late_ns > 0))
    cause = _tell_cause(evidence, rows)
    return [Straggler(one, float(cost[one]), float("nan"), hits, calls, p_value, cause)]


def _count_cost(rank: Whole, column: Whole, late: Real, shape: tuple[int, int]) -> Real:
    """Sum how much later each rank was than the mean of the others of its role."""
    count, columns = shape
    total = np.bincount(column, late, minlength=columns)
    size = np.bincount(column, minlength=columns)
    others = (total[column] - late) / np.maximum(size[column] - 1, 1)
    return np.maximum(np.bincount(rank, late - others, minlength=count).astype(np.float64), 0.0)


def _is_costly(
    cost: Real, named: NDArray[np.bool_], span_ns: Real, ranks: Whole
) -> NDArray[np.bool_]:
    share = cost / np.maximum(span_ns, 1.0)
    others = np.sort(cost[ranks])[::-1]
    # What the next one cost; of two that are equally late none is far ahead.
    rest = float(others[1]) if len(others) > 1 else 0.0
    is_ahead = cost >= _FAR_AHEAD * max(rest, 1.0)
    costly: NDArray[np.bool_] = (share >= _MUCH) | ((share >= _SOME) & is_ahead)
    return costly & ~named


def _test(mine: tuple[Real, Real, NDArray[np.bool_]], ranks: int) -> tuple[float, int, int]:
    """Return the p-value of a rank, how often it was late, and of how many collectives."""
    high, chance, is_late = mine
    tried: dict[int, tuple[float, int, int]] = {}
    for scale in _SCALES_NS:
        counted = high >= scale
        calls = int(counted.sum())
        if not calls or calls in tried:
            continue
        hits = int(is_late[counted].sum())
        tried[calls] = (_tail(calls, hits, float(chance[counted].mean())), hits, calls)
    if not tried:
        return 1.0, 0, 0
    best = min(tried.values())
    return min(1.0, best[0] * ranks * len(tried)), best[1], best[2]


def _tail(calls: int, hits: int, chance: float) -> float:
    """Return the probability of at least so many hits of a binomial distribution."""
    # The bound holds above the mean only.
    if hits < calls * chance + 1 or chance >= 1:
        return 1.0
    total = 0.0
    for one in range(hits, calls + 1):
        term = exp(
            lgamma(calls + 1)
            - lgamma(one + 1)
            - lgamma(calls - one + 1)
            + one * log(chance)
            + (calls - one) * log1p(-chance)
        )
        total += term
        if term < total * 1e-12:
            break
    return min(total, 1.0)


def _tell_cause(evidence: _Lateness, hits: Whole) -> str:
    """Tell whether the device worked longer, or got its work later."""
    late = float(evidence.late_ns[hits].sum())
    longer = evidence.longer_ns[hits]
    if not np.isnan(longer).all() and float(np.nansum(longer)) >= _MOST_OF_IT * late:
        return "gpu"
    launch = evidence.launch_ns[hits]
    if np.isnan(launch).all():
        return "unknown"
    is_late = np.nansum(np.minimum(launch, evidence.late_ns[hits])) >= _MOST_OF_IT * late
    return "host" if is_late else "unknown"
