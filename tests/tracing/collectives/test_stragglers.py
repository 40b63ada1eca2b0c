"""Who is late in made-up jobs: found, with the amount, and nobody where nobody is."""

from __future__ import annotations

import numpy as np
import pytest
from bench.rank_sets import Job
from tests.tracing.rank_sets import compare_tables, simulate

SECOND_US = 1e6

LATE = {
    "on the host": Job(late_us={5: 3000}),
    "on the device, clocks wrong": Job(late_us={5: 3000}, kind="gpu", clock_us=SECOND_US),
    "little": Job(late_us={3: 200}, steps=8, clock_us=SECOND_US),
    "much": Job(late_us={0: 20_000}, clock_us=SECOND_US),
    "every fourth time": Job(late_us={3: 3000}, steps=8, every=4),
    "no names, no numbers": Job(late_us={3: 3000}, steps=8, told="none", numbered=False),
    "told by the host": Job(ranks=16, tp=2, pp=2, late_us={5: 2000}, told="host"),
    "in one of several groups": Job(ranks=16, tp=2, pp=2, late_us={5: 2000}, clock_us=SECOND_US),
    "the same without numbers": Job(ranks=16, tp=2, pp=2, late_us={5: 2000}, numbered=False),
    "stages that differ": Job(ranks=16, tp=2, pp=2, late_us={13: 2000}, uneven_us=700),
    "two ranks": Job(late_us={3: 3000, 6: 3000}, steps=8),
    "two ranks, one worse": Job(late_us={3: 3000, 6: 1500}, steps=8),
    "half of all": Job(late_us={4: 3000, 5: 3000, 6: 3000, 7: 3000}, steps=8),
    "a node": Job(ranks=64, tp=8, late_us=dict.fromkeys(range(16, 24), 2000.0), steps=2, layers=2),
    "experts": Job(moe=True, late_us={2: 1000}),
    "beside computation": Job(overlap=True, late_us={2: 1000}, kind="gpu"),
    "clocks that drift": Job(drift_ppm=50, clock_us=SECOND_US, late_us={2: 1000}, steps=20),
    "one of two": Job(ranks=2, late_us={1: 1000}),
    "in noise": Job(jitter_us=300, steps=10, late_us={7: 1000}),
}
FAIR = {
    "all alike": Job(clock_us=SECOND_US),
    "rotating": Job(fair_us=3000, steps=8),
    "rotating in groups": Job(ranks=16, tp=4, pp=2, fair_us=2000, steps=8),
    "stages that differ": Job(ranks=16, tp=4, pp=2, uneven_us=500, clock_us=SECOND_US, steps=8),
    "beside computation": Job(overlap=True),
    "two ranks in noise": Job(ranks=2, jitter_us=100, steps=8),
    "noise": Job(jitter_us=300, steps=10),
    # Without names it cannot be known who is in which group.
    "groups that nobody names": Job(
        ranks=16, tp=4, late_us={5: 2000}, told="none", numbered=False, clock_us=SECOND_US
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_late_ranks_are_named_with_what_they_cost(name: str) -> None:
    job = LATE[name]
    tables, truth = simulate(job)

    summary = compare_tables(tables)

    found, blame = summary.get("straggler"), summary.get("rank_blame")
    assert sorted(found["rank"].tolist()) == truth["late"]
    assert set(found["cause"].tolist()) == {job.kind}
    caused = np.array(truth["wait_caused_ns"])
    assert blame["wait_caused_ns"] == pytest.approx(caused, rel=0.01, abs=50_000)
    # Each is late once a phase it takes part in; the first is not told apart from what was before.
    times = found["times_late"].astype(float)
    each = np.array([job.late_us[rank] * 1000 for rank in found["rank"].tolist()])
    # Beside computation a part of the lateness is hidden.
    if not job.overlap:
        noise = 3 * job.jitter_us * 1000
        assert found["late_ns"] / times == pytest.approx(each, rel=0.05, abs=noise / 10)


@pytest.mark.parametrize("name", FAIR)
def test_fair_arrivals_name_nobody(name: str) -> None:
    tables, _ = simulate(FAIR[name])

    summary = compare_tables(tables)

    assert summary.get("straggler")["rank"].tolist() == []


@pytest.mark.parametrize("seed", range(8))
def test_random_lateness_names_nobody(seed: int) -> None:
    tables, _ = simulate(Job(fair_us=2000, jitter_us=100, steps=6, seed=seed))

    assert len(compare_tables(tables).get("straggler")) == 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_last_of_few_is_named_with_a_large_p_value(ranks: int) -> None:
    tables, _ = simulate(Job(ranks=ranks, late_us={1: 30_000}, steps=2, layers=2, jitter_us=100))

    found = compare_tables(tables).get("straggler")

    assert found["rank"].tolist() == [1]
    assert found["times_late"].tolist() == found["collectives"].tolist()
    assert found["p_value"][0] < 0.07


@pytest.mark.parametrize("seed", range(12))
def test_random_lateness_of_few_collectives_names_nobody(seed: int) -> None:
    job = Job(ranks=seed % 3 * 2 + 2, fair_us=20_000, steps=2, layers=2, seed=seed)
    tables, _ = simulate(job)

    assert len(compare_tables(tables).get("straggler")) == 0


def test_one_long_stop_names_nobody() -> None:
    tables, truth = simulate(Job(late_us={2: 300_000}, every=1000, steps=8))

    summary = compare_tables(tables)

    assert max(truth["wait_caused_ns"]) > 290_000_000
    assert summary.get("rank_blame")["wait_caused_ns"][2] > 290_000_000
    assert len(summary.get("straggler")) == 0


def test_a_rank_kept_waiting_in_one_group_is_not_named_for_being_late_in_another() -> None:
    tables, _ = simulate(Job(ranks=16, tp=2, late_us={5: 2000}, steps=6))

    summary = compare_tables(tables)

    # Rank 4 shares a tensor-parallel group with rank 5, and comes late with it to the others.
    assert summary.get("rank_blame")["wait_suffered_ns"][4] > 10_000_000
    assert summary.get("straggler")["rank"].tolist() == [5]


def test_sixty_four_ranks() -> None:
    job = Job(ranks=64, tp=4, pp=2, steps=6, clock_us=SECOND_US, late_us={37: 900})
    tables, truth = simulate(job)

    summary = compare_tables(tables)

    assert summary.get("straggler")["rank"].tolist() == [37]
    blame = summary.get("rank_blame")
    wrong = np.array(truth["clock_offset_ns"])
    off = np.abs(wrong - wrong[0] - blame["clock_offset_ns"])
    assert (off <= blame["clock_error_ns"]).mean() > 0.9
    assert off.max() < 20_000
    assert len(summary.get("collective_gaps")) == 0
