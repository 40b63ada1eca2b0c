"""Which ranks collect garbage for long, and where that is not what the others wait for."""

from __future__ import annotations

import pytest

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.context.garbage_facts import find_pausing
from whystuck.diagnose.context.shared_wait import SharedWait
from whystuck.evidence.nodes.resources import GarbagePoint, GarbageSeries

NS_PER_S = 1_000_000_000
SECONDS = 60
WAIT = SharedWait(0, 0.1, 0.1)


def make_series(rank: int, share: float, a_second: float = 0.5) -> GarbageSeries:
    points = tuple(
        GarbagePoint(at * NS_PER_S, 5 * at, int(share * 5 * at), int(a_second * at))
        for at in range(SECONDS)
    )
    return GarbageSeries(rank, 100 + rank, points)


def make_late(rank: int, lost_share: float) -> Late:
    group = GroupOps("0", "", frozenset(range(4)), {})
    return Late((rank,), group, 1.0, 5e7, lost_share, 0.0, is_sure=True, row=-1, count=60)


def list_ranks(
    shares: dict[int, float], late: tuple[Late, ...] = (), shared: SharedWait | None = WAIT
) -> list[int]:
    series = [make_series(*one) for one in shares.items()]
    return [one.rank for one in find_pausing(series, 0, late, shared)]


def test_ranks_are_told_of_with_the_length_of_a_collection() -> None:
    (one,) = find_pausing([make_series(2, 0.2), make_series(3, 0.01)], 0, (), WAIT)

    assert one.rank == 2
    assert one.share == pytest.approx(0.2, abs=0.01)
    assert one.count == 29
    assert one.pause_s == pytest.approx(0.4, abs=0.02)


def test_who_pauses_longest_comes_first() -> None:
    assert list_ranks({0: 0.1, 1: 0.3, 2: 0.2, 3: 0.0}) == [1, 2, 0]


@pytest.mark.parametrize(("share", "lost"), [(0.2, 0.3), (0.2, 0.2), (0.1, 0.1)])
def test_late_rank_that_pauses_for_what_the_others_lose(share: float, lost: float) -> None:
    assert list_ranks({0: 0.0, 1: share}, (make_late(1, lost),), None) == [1]


@pytest.mark.parametrize(
    ("shares", "late"),
    [
        ({0: 0.1, 1: 0.0}, make_late(1, 0.1)),  # another rank
        ({0: 0.0, 1: 0.1}, make_late(1, 0.5)),  # something else takes longer
    ],
)
def test_late_rank_with_another_reason(shares: dict[int, float], late: Late) -> None:
    assert list_ranks(shares, (late,), None) == []


def test_ranks_that_pause_by_turns_explain_what_they_lose_together() -> None:
    quarter = dict.fromkeys(range(4), 0.1)

    assert sorted(list_ranks(quarter, (), SharedWait(0, 0.5, 0.5))) == [0, 1, 2, 3]
    assert list_ranks({0: 0.1, 1: 0.1}, (), SharedWait(0, 0.5, 0.5)) == []


def test_short_collections_are_no_pauses() -> None:
    assert find_pausing([make_series(0, 0.2, a_second=50)], 0, (), WAIT) == ()


def test_collections_before_the_first_op_are_left_out() -> None:
    series = make_series(0, 0.5)
    ended = GarbageSeries(0, 100, (*series.points[:20], *(
        GarbagePoint(at * NS_PER_S, 5 * at, series.points[19].seen, series.points[19].full)
        for at in range(20, SECONDS)
    )))  # fmt: skip

    assert find_pausing([ended], 20 * NS_PER_S, (), WAIT) == ()
    assert find_pausing([ended], 0, (), WAIT) != ()


def test_few_looks_tell_nothing() -> None:
    series = make_series(0, 0.5)
    assert find_pausing([GarbageSeries(0, 100, series.points[:9])], 0, (), WAIT) == ()


def test_collections_for_which_nobody_waits_are_not_told() -> None:
    assert list_ranks({0: 0.3, 1: 0.3}, (), None) == []
