"""Ranks that are late in each step, wherever in the step its ops are, and ranks that are not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from tests.diagnose.context.step_jobs import Steps, Work, slow, train

from whystuck.evidence.finding import Confidence, Report, Severity, Verdict


def named(report: Report) -> list[tuple[str, list[int]]]:
    return [(item.code, item.culprits.ranks) for item in report.findings]


def blamed(report: Report) -> list[str]:
    return [item.code for item in report.findings if item.severity is not Severity.NOTE]


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("ops", [1, 2, 3, 4])
@pytest.mark.parametrize("delay_ms", [15, 30, 80])
@pytest.mark.parametrize("buckets", [0, 1, 3])
def test_rank_that_is_late_in_each_step_is_named(
    world: int, ops: int, delay_ms: int, buckets: int
) -> None:
    culprit = (ops + delay_ms) % world
    job = train(Steps(world, seed=ops), slow(culprit, delay_ms), ops=ops, buckets=buckets)
    report = job.report()
    (finding,) = report.findings

    assert named(report) == [("S301", [culprit])]
    assert (report.verdict, finding.confidence) == (Verdict.SLOW, Confidence.LIKELY)
    assert finding.measures["lost_ms"] == pytest.approx(delay_ms, abs=1.5)
    assert finding.measures["share_last"] == 1
    assert finding.victims.ranks


def test_lost_share_is_the_time_that_the_job_would_save() -> None:
    job = train(Steps(noise_ms=0), slow(1, 30), ops=3)
    (finding,) = job.report().findings

    # 30 of 48 ms: 15 of work, and three ops of 1 ms.
    assert finding.measures["lost_share"] == pytest.approx(30 / 48, abs=0.02)


@pytest.mark.parametrize("buckets", [1, 2, 4])
@pytest.mark.parametrize("bucket_ms", [3, 40])
def test_rank_that_is_late_to_all_buckets_of_a_backward_pass_is_late_once(
    buckets: int, bucket_ms: int
) -> None:
    job = train(
        Steps(noise_ms=0.2),
        slow(1, 20, base_ms=60),
        buckets=buckets,
        bucket_ms=bucket_ms,
        has_steps=True,
    )
    (finding,) = job.report().findings

    length_ms = 60 + 20 + (buckets - 1) * bucket_ms + 2
    assert named(job.report()) == [("S301", [1])]
    assert finding.measures["lost_share"] == pytest.approx(20 / length_ms, abs=0.01)


def test_rank_that_is_late_to_each_backward_pass_of_a_step_is_named() -> None:
    """By one time in each: that looks like one pass, and no more is said to be lost than is."""
    job = Steps(noise_ms=0.2)
    for step in range(60):
        for _ in range(2):
            job.work_all(slow(3, 20, base_ms=60), step)
            for _ in range(3):
                job.work_all(lambda _rank, _step: 10, step)
                job.meet(is_async=True, step=step)
            job.wait()
    (finding,) = job.report().findings

    assert named(job.report()) == [("S301", [3])]
    assert 0.08 < finding.measures["lost_share"] < 40 / 222 + 0.01


@pytest.mark.parametrize("place", [0, 1, 2, 5])
@pytest.mark.parametrize("marks", ["lines", "steps"])
def test_rank_may_be_late_to_any_op_of_the_step(place: int, marks: str) -> None:
    """All work between ops too: what a step is tell its lines, or the steps of the optimizer."""
    job = Steps()
    for step in range(60):
        for op in range(6):
            for rank in range(4):
                job.work(rank, 10 + (30 if (rank, op) == (2, place) else 0))
            job.meet(
                lines=[20 + op] * 4 if marks == "lines" else [], step=step * (marks == "steps")
            )

    assert named(job.report()) == [("S301", [2])]


def test_few_steps_of_a_short_job_do_not_tell_that_ranks_wait() -> None:
    """One delay in them is most of the time: the job was 0.4 s long."""
    job = Steps()
    for step in range(4):
        for rank in range(4):
            job.work(rank, 300 if (rank, step) == (1, 2) else 10)
        job.meet()

    report = job.report()

    assert (report.verdict, named(report)) == (Verdict.HEALTHY, [])


def test_rank_that_works_before_another_op_than_its_peers_is_not_slow() -> None:
    """Each makes the others wait, and all work for the same time in a step."""
    job = Steps()
    for _ in range(60):
        for op in range(2):
            for rank in range(4):
                job.work(rank, 40 if (rank == 2) == (op == 0) else 10)
            job.meet()
    report = job.report()

    assert named(report) == [("S308", [])]
    assert report.verdict is Verdict.SLOW


def random_work(draw: random.Random, base_ms: float) -> Work:
    return lambda _rank, _step: base_ms * (0.3 + 2 * draw.random())


QUIET: dict[str, Callable[[random.Random], Work]] = {
    "healthy": lambda _: lambda _rank, _step: 20,
    "jitter": lambda draw: lambda _rank, _step: 20 + 30 * draw.random(),
    "random work": lambda draw: random_work(draw, 30),
    "heavy tail": lambda draw: lambda _rank, _step: 10 * draw.paretovariate(1.5),
    "turns": lambda _: lambda rank, step: 20 + (60 if step // 7 % 4 == rank else 0),
    "slow start": lambda draw: lambda _, step: 20 + (900 * draw.random() if step < 4 else 0),
    "compile": lambda _: lambda rank, step: 20 + (9000 + 500 * rank if step == 0 else 0),
    "log": lambda _: lambda rank, step: 20 + (100 if rank == 0 and step % 10 == 9 else 0),
    "often": lambda _: lambda rank, step: 20 + (40 if rank == 0 and step % 4 == 3 else 0),
    "save": lambda _: lambda rank, step: 20 + (400 if rank == 0 and step % 20 == 19 else 0),
    "long save": lambda _: lambda rank, step: 5 + (900 if rank == 0 and step % 15 == 14 else 0),
    "all save": lambda _: (
        lambda rank, step: 20 + (150 + (60 if rank == 0 else 0) if step % 10 == 9 else 0)
    ),
    "evaluation": lambda _: lambda rank, step: 20 + (20000 if rank == 0 and step == 30 else 0),
    "late for a while": lambda _: lambda rank, step: 20 + (50 if rank == 1 and step < 25 else 0),
}


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("kind", QUIET)
def test_nobody_is_named_where_nobody_is_late_throughout(kind: str, world: int) -> None:
    for seed in range(8):
        work = QUIET[kind](random.Random(seed))
        job = Steps(world, seed=seed, noise_ms=1.0 + seed)
        train(job, work, ops=1 + seed % 4, buckets=seed % 3)

        assert blamed(job.report()) == [], seed


def test_core_that_is_taken_for_a_while_makes_its_rank_no_slow_one() -> None:
    """Noise that lasts for many steps: in a short job, one rank has most of it by chance."""
    named_jobs = 0
    for seed in range(40):
        draw = random.Random(seed)
        busy_ms = [0.0, 0.0]
        job = Steps(2, seed=seed)
        for _ in range(60):
            for rank in range(2):
                busy_ms[rank] = 0.9 * busy_ms[rank] + draw.gauss(0, 6)
                job.work(rank, 40 + busy_ms[rank])
            job.meet()
        named_jobs += bool(blamed(job.report()))

    # Of some jobs nothing else can be said: the rank was slower all the time.
    assert named_jobs <= 2


def test_starved_ranks_are_named_right_or_not_at_all() -> None:
    """Noise as large as the delay: the tail of a scheduler with more ranks than cores."""
    answers = []
    for seed in range(30):
        job = Steps(8, seed=seed, noise_ms=25)
        train(job, slow(seed % 8, 15), ops=1 + seed % 4, steps=80)
        answers += [
            one.culprits.ranks == [seed % 8] for one in job.report().findings if one.code == "S301"
        ]

    assert all(answers)
    assert answers


def test_rank_without_inputs_under_join_is_no_reason_to_name_the_others() -> None:
    """It comes at once, from the line at which it waits for the others to be done."""
    job = Steps(2)
    train(job, lambda _rank, _step: 20, steps=20)
    for _ in range(40):
        job.work(1, 20)
        job.meet(lines=[30, 10])
    report = job.report()

    assert named(report) == [("S308", [])]


def test_stages_of_a_pipeline_are_not_compared() -> None:
    """A stage comes late to the op at the end of a step for what it waited in a receive."""
    job = Steps(2)
    for _ in range(60):
        job.work(0, 20)
        job.logged.op([0], "send", peer=1, at_ns=int(job.now_ns[0]))
        job.now_ns[1] = max(job.now_ns[1], job.now_ns[0])
        job.logged.op([1], "recv", peer=0, at_ns=int(job.now_ns[1]))
        job.work(1, 40)
        job.meet()

    assert blamed(job.report()) == []


@pytest.mark.parametrize("culprit", [0, 3])
def test_rank_that_waits_in_another_group_is_not_late(culprit: int) -> None:
    """Tensor-parallel pairs meet first: the peer of the late rank is late to its own group too."""
    job = Steps()
    for _ in range(60):
        for rank in range(4):
            job.work(rank, 20 + (30 if rank == culprit else 0))
        job.meet([0, 1])
        job.meet([2, 3])
        for rank in range(4):
            job.work(rank, 5)
        job.meet([0, 2])
        job.meet([1, 3])

    assert {ranks[0] for code, ranks in named(job.report()) if code == "S301"} == {culprit}
    assert len(job.report().findings) == 1


def test_call_that_one_rank_alone_makes_now_and_then_hides_nothing() -> None:
    job = Steps()
    for step in range(60):
        job.work_all(slow(3, 30), step)
        job.meet()
        if step % 20 == 7:
            job.meet(lines=[40, 10, 10, 10])

    assert named(job.report()) == [("S301", [3])]


def test_too_few_steps_name_nobody() -> None:
    job = train(Steps(2), slow(1, 30), steps=8)

    assert blamed(job.report()) == []


def test_waits_of_a_third_are_never_healthy() -> None:
    """Ranks take turns with work: none is late throughout, and all wait."""
    job = train(Steps(), lambda rank, step: 10 + (60 if step % 4 == rank else 0), steps=80)
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.SLOW
    assert (finding.code, finding.severity) == ("S308", Severity.NOTE)
    assert finding.summary.endswith("who comes last changes")
    assert finding.measures["for_peers_share"] >= 0.5
    assert set(finding.details["caused_by_rank"]) == {"0", "1", "2", "3"}


def test_rank_that_causes_most_waits_now_and_then_is_told_of_and_not_named() -> None:
    job = train(Steps(), lambda rank, step: 10 + (900 if rank == 0 and step % 20 == 9 else 0))
    (finding,) = job.report().findings

    assert (finding.code, finding.culprits.ranks) == ("S308", [])
    assert "rank 0 causes" in finding.summary
    assert "not step after step" in finding.summary


def test_two_ranks_that_hide_each_other_are_told_of() -> None:
    job = train(Steps(), lambda rank, _step: 15 + (40 if rank in {1, 2} else 0))
    (finding,) = job.report().findings

    # Two of four: the others may be fast as well as these slow.
    assert (finding.code, finding.culprits.ranks) == ("S301", [1, 2])
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.measures["lost_ms"] == pytest.approx(40, abs=1.5)
    assert finding.victims.ranks == "0,3"


def test_few_ranks_that_are_slow_alike_are_named_together() -> None:
    job = train(Steps(8), lambda rank, _step: 15 + (40 if rank in {1, 2, 6} else 0))
    (finding,) = job.report().findings

    assert (finding.code, finding.culprits.ranks) == ("S301", [1, 2, 6])
    assert finding.confidence is Confidence.LIKELY


def test_two_ranks_that_are_late_by_turns_are_told_of() -> None:
    job = train(Steps(), lambda rank, step: 15 + (40 if rank == 1 + step // 6 % 2 else 0))
    (finding,) = job.report().findings

    assert (finding.code, finding.culprits.ranks) == ("S308", [])
    assert "ranks 1-2 cause" in finding.summary
    assert finding.summary.endswith("of that, by turns")


@pytest.mark.parametrize("onset", [0, 3, 40, 100, 160])
@pytest.mark.parametrize("lasts", [40, 60, 1000])
@pytest.mark.parametrize("delay_ms", [8, 20, 60])
def test_rank_that_becomes_slow_is_named_with_its_steps(
    onset: int, lasts: int, delay_ms: int
) -> None:
    end = min(onset + lasts, 200)
    job = Steps(seed=onset + lasts)
    for step in range(200):
        for rank in range(4):
            is_slow = rank == 3 and onset <= step < end
            job.work(rank, 25 + (delay_ms if is_slow else 0))
        job.meet(step=step)
    (finding,) = job.report().findings

    assert named(job.report()) == [("S301", [3])]
    assert finding.measures["lost_ms"] == pytest.approx(delay_ms, abs=1.5)
    lengths = 26 * (end - onset) + delay_ms * (end - onset)
    assert finding.measures["lost_share"] == pytest.approx(
        delay_ms * (end - onset) / lengths, rel=0.2
    )
    until = [int(word) for word in re.findall(r" to (\d+),", finding.summary)]
    since = [int(word) for word in re.findall(r"step (\d+)", finding.summary)]
    begins = [onset] if onset > 3 else [0] * len(until)
    assert since == pytest.approx(begins, abs=3)
    assert until == pytest.approx([end - 1] if end < 200 else [], abs=3)


def test_node_whose_ranks_are_all_slow_is_named() -> None:
    job = train(Steps(8), lambda rank, _step: 15 + (40 if rank in {4, 5, 6, 7} else 0))
    for rank in range(8):
        job.logged.nodes[rank] = f"n{rank // 4}"
    report = job.report()

    assert named(report) == [("S302", [4, 5, 6, 7])]
    assert report.findings[0].culprits.nodes == ["n1"]


def test_waits_of_asynchronous_ops_are_counted_too() -> None:
    job = train(
        Steps(), lambda rank, step: 10 + (60 if step % 4 == rank else 0), buckets=2, ops=0, steps=80
    )
    report = job.report()

    assert report.communication.exposed_most == 0
    assert named(report) == [("S308", [])]


def test_transfers_that_take_a_third_are_communication_bound() -> None:
    job = train(Steps(transfer_ms=20), lambda _rank, _step: 10)
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.SLOW
    # Ops of 16 bytes: their time is that of the host.
    assert (finding.code, finding.severity) == ("S310", Severity.NOTE)
    assert finding.measures["for_peers_share"] < 0.1


def test_wait_for_the_start_of_other_ranks_is_none_of_the_job() -> None:
    job = Steps()
    job.now_ns[3] += 20e9
    train(job, lambda _rank, _step: 30)
    report = job.report()

    assert report.verdict is Verdict.HEALTHY
    assert report.communication.exposed_most < 0.1
    assert report.communication.span_s == pytest.approx(60 * 0.0315, abs=0.1)


def test_job_whose_steps_all_become_longer_is_told_with_the_step() -> None:
    job = Steps(noise_ms=4)
    for step in range(150):
        job.work_all(lambda _rank, step: 20 if step < 70 else 30, step)
        job.meet(step=step)
    report = job.report()
    (finding,) = report.findings

    assert (finding.code, finding.culprits.ranks, report.verdict) == ("S304", [], Verdict.SLOW)
    assert finding.details == {"phase": "work", "step": pytest.approx(70, abs=3)}
    assert finding.measures["before_ms"] == pytest.approx(23.2, abs=2)
    assert finding.measures["after_ms"] == pytest.approx(33.2, abs=2)
    assert finding.measures["lost_share"] == pytest.approx(0.3, abs=0.05)


def test_ops_that_become_longer_are_told_as_communication() -> None:
    job = Steps()
    for step in range(150):
        job.transfer_ms = 2 if step < 80 else 12
        job.work_all(lambda _rank, _step: 20, step)
        job.meet(step=step)
    (finding,) = job.report().findings

    assert (finding.code, finding.details["phase"]) == ("S304", "communication")


@pytest.mark.parametrize("kind", ["back again", "noise", "start", "little", "saves", "drift"])
def test_job_that_does_not_become_slower_for_good_is_no_finding(kind: str) -> None:
    works: dict[str, Callable[[int], float]] = {
        "back again": lambda step: 30 if 50 <= step < 90 else 20,
        "noise": lambda step: 20 + 20 * ((step * 7919) % 11 > 6),
        "start": lambda step: 500 if step < 4 else 20,
        "little": lambda step: 20 if step < 70 else 21.5,
        "saves": lambda step: 20 + (200 if step % 10 == 9 else 0),
        "drift": lambda step: 20 + (10 if step < 70 else 0),
    }
    job = Steps(noise_ms=3)
    for step in range(150):
        job.work_all(lambda _rank, step: works[kind](step), step)
        job.meet(step=step)

    assert blamed(job.report()) == []
