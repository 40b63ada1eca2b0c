"""Which late ranks do not get the processor, and which ones have more to compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.context.cpu_facts import Starved, find_starved
from whystuck.evidence.nodes.resources import CpuPoint, CpuSeries
from whystuck.evidence.ops.collectives import Collectives

NS_PER_S = 1_000_000_000
SECONDS = 60


def make_series(rank: int, run_share: float, wait_share: float) -> CpuSeries:
    points = tuple(
        CpuPoint(
            time_ns=at * NS_PER_S,
            run_ns=int(run_share * at * NS_PER_S),
            delay_ns=int(wait_share * at * NS_PER_S),
            throttled_ns=-1,
        )
        for at in range(SECONDS)
    )
    return CpuSeries(rank=rank, pid=100 + rank, points=points)


def judge(own: tuple[float, float], others: tuple[float, float], lost: float) -> Starved | None:
    """Judge rank 3 of four, which is late; pairs are of time that is run, and waited to run."""
    series = [make_series(rank, *others) for rank in range(3)] + [make_series(3, *own)]
    group = GroupOps("0", "", frozenset(range(4)), {})
    late = Late((3,), group, 1.0, 5e7, lost, 0.0, is_sure=True, row=-1, count=60)
    return find_starved(series, [late], Collectives())


@pytest.mark.parametrize(
    ("own", "others", "lost"),
    [
        ((0.06, 0.85), (0.06, 0.04), 0.6),  # a quota
        ((0.30, 0.40), (0.30, 0.02), 0.3),  # somebody else on its core
        ((0.20, 0.70), (0.20, 0.40), 0.3),  # the same where all cores are busy
    ],
)
def test_late_rank_that_waits_longer_for_what_it_runs_is_starved(
    own: tuple[float, float], others: tuple[float, float], lost: float
) -> None:
    found = judge(own, others, lost)

    assert found is not None
    assert (found.ranks, found.lost_share) == ((3,), lost)


@pytest.mark.parametrize(
    ("stopped", "resumed", "ranks"),
    [(45, 20, (1,)), (45, 1, None), (5, 5, None)],
    ids=["in turns", "once for long", "rarely"],
)
def test_rank_that_signals_stop_in_turns_is_named(
    stopped: int, resumed: int, ranks: tuple[int, ...] | None
) -> None:
    series = [make_series(rank, 0.1, 0.1) for rank in range(3)]
    series[1] = replace(series[1], looks=60, stopped=stopped, resumed=resumed)
    found = find_starved(series, [], Collectives())

    assert (found.ranks if found else None) == ranks
    assert found is None or found.victims == (0, 2)


@pytest.mark.parametrize(
    ("own", "others", "lost"),
    [
        # Four ranks on two cores, one of which collects garbage for long: it waits for a processor
        # as its peers do for each second that they run.
        ((0.28, 0.52), (0.20, 0.44), 0.15),
        ((0.26, 0.54), (0.18, 0.46), 0.11),
        ((0.60, 0.30), (0.20, 0.10), 0.4),
    ],
)
def test_late_rank_that_has_more_to_compute_is_not_starved(
    own: tuple[float, float], others: tuple[float, float], lost: float
) -> None:
    assert judge(own, others, lost) is None


def crowd(demand: float, threads: float, cores: int = 2, odd: int = -1) -> Starved | None:
    """Judge four ranks of a node, which want so many cores each; one of them may want one."""
    series = [
        replace(
            make_series(rank, 0.1, 0.3),
            demand_ns=int(1e9 * (1 if rank == odd else demand)),
            busy_ns=int(1e9 * (5 if rank == odd else threads)),
            demand_over_ns=10**9,
            cores=cores,
        )
        for rank in range(4)
    ]
    group = GroupOps("0", "", frozenset(range(4)), {})
    late = Late((3,), group, 0.9, 1e7, 0.2, 0.0, is_sure=True, row=-1, count=60)
    return find_starved(series, [late], Collectives())


def test_ranks_whose_threads_crowd_the_cores_are_named_together() -> None:
    found = crowd(2.0, 12)

    assert found is not None
    assert (found.ranks, found.victims, found.demand) == ((0, 1, 2, 3), (), 8.0)
    assert found.lost_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("demand", "threads", "cores", "odd"),
    [
        (1.0, 5, 2, -1),  # a thread each, more of them than cores
        (2.0, 12, 4, -1),  # cores for most of them
        (2.0, 12, 0, -1),
        (3.0, 12, 2, 0),  # one of them has few
    ],
)
def test_ranks_with_room_enough_are_not(
    demand: float, threads: float, cores: int, odd: int
) -> None:
    assert crowd(demand, threads, cores, odd) is None
