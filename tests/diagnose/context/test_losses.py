"""Collectives that torch never issued: what they explain, and what they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.diagnose.scenes import MODULE, WAITING, Job, at

from whystuck.evidence.finding import Confidence, Severity, Verdict

SLEEPING = (at("/job/features.py", 7, "wait_for_quota"), at("/job/train.py", 8), MODULE)
CUT = "[pair.cc:553] Connection closed by peer [127.0.0.1]:28047"


def hang() -> Job:
    """Rank 2 lost its sixth all_reduce and went on; the others wait in it."""
    return Job().steps().waits([0, 1, 3]).loses(2, count=2)


def at_barrier(job: Job) -> Job:
    """The rank went on to the next op of the group."""
    barrier = at("/job/train.py", 20)
    job.ops([2], "barrier", [barrier, MODULE], pending=True)
    return job.stands(2, (*WAITING, barrier, MODULE))


def computing(job: Job) -> Job:
    return job.stands(2, SLEEPING, cpu_share=0.9)


def in_setup(job: Job) -> Job:
    """The rank prepares something; before the first step such a rank is waited for."""
    return job.stands(2, (at("/job/train.py", 3, "load_model"), MODULE), cpu_share=0.9)


def gone(job: Job) -> Job:
    return job.ends(2, code=0)


def reducing_other_sizes(job: Job) -> Job:
    job.ops([2], "all_reduce", [at("/job/train.py", 30), MODULE], pending=True, input_sizes=[[7]])
    return job.stands(2, (*WAITING, at("/job/train.py", 30), MODULE))


@pytest.mark.parametrize("go_on", [at_barrier, computing, in_setup, gone, reducing_other_sizes])
def test_lost_calls_of_one_rank_explain_the_hang_alone(go_on: Callable[[Job], Job]) -> None:
    report = go_on(hang()).report()
    (finding,) = report.findings

    assert report.verdict is Verdict.STUCK
    assert (finding.code, finding.name) == ("H124", "collective-not-issued")
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits.ranks == [2]
    assert finding.culprits.groups == ["0"]
    assert finding.victims.ranks == "0-1,3"
    assert [(place.file, place.line) for place in finding.where] == [
        ("/job/train.py", 10),
        ("/job/warm.py", 4),
    ]
    assert finding.because[0].artifact == "n0/rank-2/skipped.json"
    assert finding.details == {
        "groups": ["0"],
        "calls": 2,
        "ops": {"all_reduce": 2},
        "manager": "warm_up (warm.py:4)",
        "first_step": 3,
    }
    assert "nor 1 later call:" in finding.summary
    assert "ranks 0-1,3 waited for it" in finding.summary


def test_without_the_notes_the_same_hang_is_told_by_its_ops() -> None:
    job = at_barrier(hang())
    job.failed_managers.clear()

    assert "H124" not in job.codes()
    assert job.codes() != []


def test_rank_that_left_after_lost_calls_is_the_cause_of_the_crash() -> None:
    job = Job().of_kind("exit", command_exit=1).steps().loses(2, count=9).ends(2, code=0)
    job.ops([0, 1, 3], "all_reduce", [at("/job/train.py", 10), MODULE], pending=True)
    for rank in (0, 1, 3):
        job.raises(rank, "RuntimeError", CUT, [at("/job/train.py", 10)]).ends(rank, code=1)
    report = job.report()

    assert report.verdict is Verdict.CRASHED
    assert [finding.code for finding in report.findings] == ["H124"]
    assert report.findings[0].victims.ranks == "0-1,3"


def test_wait_for_a_lost_call_is_explained() -> None:
    """The handle of a lost call with ``async_op=True`` raises in ``wait``."""
    job = Job().of_kind("exit", command_exit=1).steps()
    for rank in range(4):
        job.loses(rank).ends(rank, code=1)
        message = "Illegal to call wait on IllegalWork object"
        job.raises(rank, "ValueError", message, [at("/job/train.py", 11)])
    report = job.report()

    assert report.verdict is Verdict.CRASHED
    assert [finding.code for finding in report.findings] == ["H124"]
    assert report.findings[0].culprits.ranks == [0, 1, 2, 3]


def lost_everywhere(kind: str, **changes: int) -> Job:
    job = Job().of_kind(kind, **changes).steps()
    for rank in range(4):
        job.loses(rank, count=3 + rank)
    return job


def test_job_that_ended_well_without_its_collectives_diverged() -> None:
    job = lost_everywhere("exit", command_exit=0)
    for rank in range(4):
        job.ends(rank, code=0)
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.DIVERGED
    assert finding.culprits.ranks == [0, 1, 2, 3]
    assert finding.victims.ranks == ""
    assert finding.details["calls"] == 18
    assert "never exchanged" in finding.summary


def test_hang_after_lost_calls_of_all_ranks_has_another_cause() -> None:
    job = lost_everywhere("stall").waits([0, 1, 3], line=40, op="barrier").stands(2, SLEEPING)
    report = job.report()

    assert report.verdict is Verdict.STUCK
    assert [finding.code for finding in report.findings] == ["H101", "H124"]
    assert report.findings[0].culprits.ranks == [2]


def test_wait_for_a_checkpoint_after_lost_calls_of_all_ranks_stays_a_wait() -> None:
    """What was lost must not end a job in which ranks only wait."""
    frames = (at("/job/files.py", 31, "write"), at("/job/files.py", 20, "save_checkpoint"), MODULE)
    job = lost_everywhere("stall").waits([1, 2, 3], line=40, op="barrier")
    report = job.stands(0, frames, write_bytes=8_000_000).report()

    assert report.verdict is Verdict.WAITING
    assert [finding.code for finding in report.findings] == ["H124", "H118"]


def test_stall_that_nothing_else_explains_is_not_decided_by_lost_calls_of_all_ranks() -> None:
    report = lost_everywhere("stall").report()

    assert report.verdict is Verdict.INCONCLUSIVE
    assert [finding.code for finding in report.findings] == ["H124"]


def test_snapshot_of_a_job_that_goes_on_without_its_collectives_diverged() -> None:
    job = lost_everywhere("snapshot", stalled_s=0)
    for rank in range(4):
        job.stands(rank, [SLEEPING, (at("/job/train.py", 12), MODULE)], cpu_share=0.9)

    assert job.report().verdict is Verdict.DIVERGED


def test_rank_that_raised_for_a_reason_of_its_own_comes_first() -> None:
    job = Job().of_kind("exit", command_exit=1).steps().loses(2)
    job.raises(3, "KeyError", "'label'", [at("/job/data.py", 5)]).ends(3, code=1)
    job.raises(0, "RuntimeError", CUT, [at("/job/train.py", 10)]).ends(0, code=1)
    report = job.report()

    assert report.verdict is Verdict.CRASHED
    assert [finding.code for finding in report.findings] == ["C204", "H124"]
    assert report.findings[0].culprits.ranks == [3]


def test_other_rank_that_is_elsewhere_stays_named() -> None:
    job = Job().steps().waits([0, 1]).loses(2).stands(2, SLEEPING)
    report = job.stands(3, (), state="T").report()

    assert [finding.code for finding in report.findings] == ["H124", "H113"]
    assert report.findings[1].culprits.ranks == [3]


def test_job_that_moved_again_still_lost_its_values() -> None:
    report = computing(hang()).of_kind("stall", closed_after_s=40.0).report()

    assert report.verdict is Verdict.DIVERGED
    first = report.findings[0]
    assert (first.code, first.severity, first.victims.ranks) == ("H124", Severity.ERROR, "")


def test_groups_of_one_line_are_one_finding() -> None:
    job = Job().of_kind("exit", command_exit=0).steps()
    for rank in range(4):
        job.loses(rank, group=f"pair{rank // 2}", members=[rank // 2 * 2, rank // 2 * 2 + 1])
        job.ends(rank, code=0)
    finding = job.finding()

    assert finding.culprits.groups == ["pair0", "pair1"]
    assert finding.culprits.ranks == [0, 1, 2, 3]


@pytest.mark.parametrize(("op", "codes"), [("all_reduce", []), ("all_gather_single", ["H124"])])
def test_rank_alone_in_its_group_misses_no_sum(op: str, codes: list[str]) -> None:
    job = Job(world=1).of_kind("exit", command_exit=0).steps().ends(0, code=0)

    assert job.loses(0, op=op, members=[0]).codes() == codes
