"""Jobs with several groups on hosts: who left out a call, made one more, or is ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.group_jobs import JOBS, GroupJob
from tests.diagnose.played import Played, play

from whystuck.evidence.finding import Confidence, Finding, Report, Severity, Verdict

# A step without habit, one with a step before it, and one after many.
STEPS = (0, 1, 11)
# Steps after which the habit of a rank is known.
STEPS_WITH_HABIT = (5, 11)
# So few calls are left of a ring that wrapped.
SHORT = 24
CASES = [(name, world) for name, job in JOBS.items() for world in job.worlds]


def run(job: GroupJob, world: int, at: int, bad: tuple[int, ...]) -> Played:
    def give(rank: int) -> Mapping[str, Any]:
        return {"AT": at, "BAD": bad, "is_odd": lambda step: rank in bad and step == at}

    return play(job.script, world, more=give)


def tell(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.severity is not Severity.NOTE]


@pytest.mark.parametrize("bad", ["first", "last"])
@pytest.mark.parametrize(("name", "world"), CASES)
def test_rank_that_breaks_its_habit_is_named(name: str, world: int, bad: str) -> None:
    job = JOBS[name]
    rank = 0 if bad == "first" else world - 1
    if world == 2 and name.startswith("ahead: it accumulates"):
        pytest.skip("which of two numbers is the wrong one, nobody can tell")
    for at in STEPS_WITH_HABIT:
        played = run(job, world, at, (rank,))
        assert not played.is_over
        first = tell(played.report())[0]

        assert first.code in {job.code, *job.also}, first.summary
        assert first.culprits.ranks == (list(range(world)) if job.all_ranks else [rank])


@pytest.mark.parametrize(("name", "world"), CASES)
def test_nobody_innocent_is_named_for_sure(name: str, world: int) -> None:
    """Whatever the step, the number of culprits, and what is left of calls and sources."""
    job = JOBS[name]
    for at in STEPS:
        for bad in ((world - 1,), (1, 3) if world > 2 else (0,)):
            played = run(job, world, at, bad)
            truth = set(range(world)) if job.all_ranks else set(bad)
            if played.is_over:
                continue
            for capacity, has_source in (
                (4096, True),
                (4096, False),
                (SHORT, True),
                (SHORT, False),
            ):
                left = replace(played, capacity=capacity, has_source=has_source)
                sure = [
                    one for one in tell(left.report()) if one.confidence is not Confidence.POSSIBLE
                ]
                named = {rank for one in sure for rank in one.culprits.ranks}

                assert named <= truth, [one.summary for one in sure]


@pytest.mark.parametrize(("name", "world"), CASES)
def test_job_without_a_fault_has_no_finding(name: str, world: int) -> None:
    played = run(JOBS[name], world, 5, ())

    assert played.is_over
    assert tell(played.report()) == []


def first_of(name: str, at: int = 5, **changes: Any) -> Finding:
    return tell(replace(run(JOBS[name], 4, at, (3,)), **changes).report())[0]


def test_order_of_groups_is_certain_only_where_it_is_shown() -> None:
    assert first_of("order: two branches").confidence is Confidence.CERTAIN
    assert first_of("order: a list").confidence is Confidence.LIKELY
    # Nothing tells an order from a call that was left out.
    unknown = first_of("order: two branches", at=0, has_source=False)
    assert unknown.confidence is not Confidence.CERTAIN


def test_rank_that_is_ahead_is_not_told_to_move_its_call() -> None:
    finding = first_of("ahead: a backward pass that failed")

    assert "rank 3 is ahead at the all_reduce in evaluate" in finding.summary
    assert "without the all_reduce in train (train.py:14)" in finding.summary
    assert finding.where[0].line == 14
    assert not any("if rank" in text for text in finding.remedies)


def test_a_call_in_another_group_than_the_peers_wait_in_is_shown_with_their_waits() -> None:
    finding = first_of("extra: a value that is odd")

    assert finding.code == "H102"
    assert any("rank 0 waits in all_reduce" in cite.text for cite in finding.because)


def test_calls_of_two_lines_that_meet_in_one_op_are_no_transfer() -> None:
    for at in (0, 5):
        finding = first_of("skip: empty expert batch", at)

        assert (finding.code, finding.culprits.ranks) == ("H127", [3])


SAVES = """
def save():
    dist.barrier()
    dist.all_gather(4)
    dist.all_reduce(1)

def main():
    for step in range(1, 60):
        for size in (100, 200, 300):
            dist.all_reduce(size)
        if step % 5 == 0:
            dist.all_reduce(8)
            if not is_odd(step):
                save()

main()
"""


@pytest.mark.parametrize("world", [2, 4])
def test_several_calls_left_out_at_once_are_no_other_op(world: int) -> None:
    """The rank goes on to a call of its next step; the others are in the first that it left out."""
    first = tell(run(GroupJob(SAVES, "H127"), world, 15, (1,)).report())[0]

    assert (first.code, first.culprits.ranks) == ("H127", [1])
    assert "barrier" in first.summary


def test_ring_is_stuck_even_where_nothing_tells_why() -> None:
    report = run(JOBS["extra: a value that is odd"], 2, 0, (1,)).report()

    assert report.verdict is Verdict.STUCK
    assert tell(report)[0].confidence is Confidence.POSSIBLE


PARTS = """
def pass_on(count):
    before, after = (rank - 1) % world, (rank + 1) % world
    for part in range(3):
        if rank % 2:
            dist.recv(before)
            dist.send(after)
        else:
            dist.send(after)
            dist.recv(before)
    for part in range(count):
        dist.recv(before)

def main():
    for step in range(20):
        dist.all_reduce(100)
        pass_on(1 if is_odd(step) else 0)
        dist.all_reduce(1)

main()
"""


def test_receive_too_many_is_no_collective_left_out() -> None:
    job = GroupJob(PARTS, "H110")
    for at in (0, 1, 7):
        codes = {one.code for one in tell(run(job, 4, at, (2,)).report())}

        assert codes
        assert codes.isdisjoint({"H102", "H103", "H104", "H127"})
