"""Time limits that end an op which was only slow, and those that end a job that is stuck."""

from __future__ import annotations

from tests.diagnose.scenes import MODULE, STEP_NS, WAITING, Job, at

from whystuck.evidence.finding import Confidence

LOSS = at("/job/train.py", 10)
BARRIER = at("/job/train.py", 17)
EVALUATE = (at("/job/train.py", 30, "evaluate"), at("/job/train.py", 16), MODULE)
LIMIT_MS = 8000
TIMEOUT = RuntimeError.__name__, f"Timed out waiting {LIMIT_MS}ms for recv operation to complete"
SECOND_NS = 1_000_000_000


def train(evaluation_s: float, *, world: int = 4) -> Job:
    """Two epochs in which rank 0 evaluates while the others wait in a barrier."""
    job = Job(world).of_kind("exit", command_exit=1)
    now_ns = SECOND_NS
    for _ in range(2):
        for _ in range(5):
            now_ns += STEP_NS
            job.ops(range(world), "all_reduce", [LOSS, MODULE], time_created_ns=now_ns)
        now_ns += STEP_NS
        job.ops(range(1, world), "barrier", [BARRIER, MODULE], time_created_ns=now_ns)
        now_ns += round(evaluation_s * SECOND_NS)
        job.ops([0], "barrier", [BARRIER, MODULE], time_created_ns=now_ns)
    job.ops(range(world), "all_reduce", [LOSS, MODULE], time_created_ns=now_ns + STEP_NS)
    return job


def give_up(job: Job) -> Job:
    """Let all but rank 0 wait in the barrier until its limit ends."""
    last_ns = max(entry["time_created_ns"] for mine in job.entries.values() for entry in mine)
    ranks = range(1, job.world)
    job.ops(
        ranks,
        "barrier",
        [BARRIER, MODULE],
        pending=True,
        time_created_ns=last_ns + STEP_NS,
        timeout_ms=LIMIT_MS,
    )
    for rank in ranks:
        job.raises(rank, *TIMEOUT, [*WAITING, BARRIER, MODULE])
        job.stands(rank, (*WAITING, BARRIER, MODULE))
    return job


def test_call_that_came_near_the_limit_before_needs_a_longer_one() -> None:
    job = give_up(train(evaluation_s=5)).stands(0, EVALUATE, cpu_share=1.0)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H125", [])
    assert finding.confidence is Confidence.LIKELY
    assert finding.measures == {"limit_s": 8.0, "longest_s": 5.1}
    assert finding.where[0].line == BARRIER.line
    assert finding.details["late_ranks"] == [0]


def test_rank_at_work_when_a_short_limit_ends_was_only_slow() -> None:
    job = give_up(train(evaluation_s=1.5)).stands(0, EVALUATE, cpu_share=1.0)
    finding = job.finding()

    assert (finding.code, finding.confidence) == ("H125", Confidence.LIKELY)


def test_rank_at_work_for_many_times_as_long_as_before_may_work_for_ever() -> None:
    finding = give_up(train(evaluation_s=0.1)).stands(0, EVALUATE, cpu_share=1.0).finding()

    assert (finding.code, finding.confidence) == ("H125", Confidence.POSSIBLE)
    assert finding.details["late_ranks"] == [0]
    assert finding.culprits.ranks == []
    assert (
        "still at work, where this call took 0.2 s at most before; or for ever" in finding.summary
    )


def test_rank_that_sleeps_when_a_short_limit_ends_never_joined() -> None:
    finding = give_up(train(evaluation_s=0.1)).stands(0, EVALUATE).finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [0])


def test_rank_that_came_after_the_limit_proves_it_too_short() -> None:
    job = give_up(train(evaluation_s=0.1))
    last_ns = job.entries[1][-1]["time_created_ns"]
    job.ops(
        [0],
        "barrier",
        [BARRIER, MODULE],
        pending=True,
        time_created_ns=last_ns + 11 * SECOND_NS,
        timeout_ms=LIMIT_MS,
    )
    job.raises(0, "RuntimeError", "Connection closed by peer", [*WAITING, BARRIER, MODULE])
    finding = job.stands(0, (*WAITING, BARRIER, MODULE)).finding()

    assert (finding.code, finding.confidence) == ("H125", Confidence.CERTAIN)
    assert finding.measures["late_s"] == 3.0


def test_stopped_rank_is_the_cause_whatever_the_limit() -> None:
    finding = give_up(train(evaluation_s=5)).stands(0, EVALUATE, state="T").finding()

    assert (finding.code, finding.culprits.ranks) == ("H113", [0])
