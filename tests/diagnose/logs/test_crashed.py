"""Jobs that ended: the first cause is named, and what follows from it is not."""

from __future__ import annotations

from tests.diagnose.scenes import C10D, MODULE, Job, at

from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.evidence.finding import Confidence, Severity, Verdict
from whystuck.evidence.live import FatalStack, ThreadStack
from whystuck.evidence.ops.collectives import Frame

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
TIMED_OUT = "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv"
LIBRARY = Frame("all_reduce", C10D, 3000)
RECORDS = at("/job/records.py", 12, "parse_record")


def ended(world: int = 4) -> Job:
    return Job(world).of_kind("exit", stalled_s=0.0, limit_s=0.0, command_exit=1)


def with_victims(job: Job, ranks: tuple[int, ...]) -> Job:
    for rank in ranks:
        job.raises(rank, "RuntimeError", CLOSED, [LIBRARY, at("/job/train.py", 10), MODULE])
        job.ends(rank, code=1)
    return job


def test_first_exception_by_cause_is_c204() -> None:
    job = with_victims(ended(), (0, 1, 3)).ends(2, code=1)
    job.raises(2, "IndexError", "list index out of range", [RECORDS, MODULE])
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.CRASHED
    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert (finding.where[0].file, finding.where[0].line) == ("/job/records.py", 12)
    assert finding.victims.ranks == "0-1,3"


def test_clocks_do_not_decide_which_failure_came_first() -> None:
    job = with_victims(ended(), (0, 1, 3)).ends(2, code=1, ended_ns=9)
    for position, item in enumerate(job.exits):
        assert item.ended_ns in {0, 9}, position
    job.raises(2, "ValueError", "x", [RECORDS])

    assert job.finding().culprits.ranks == [2]


def test_exception_raised_in_a_library_is_placed_at_the_users_line() -> None:
    job = ended().raises(1, "TypeError", "x", [LIBRARY, at("/job/train.py", 10), MODULE])

    assert job.finding().where[0].line == 10


def test_same_exception_everywhere_blames_nobody() -> None:
    job = ended()
    for rank in range(4):
        job.raises(rank, "KeyError", "'lr'", [RECORDS, MODULE]).ends(rank, code=1)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("C205", [])
    assert finding.details["ranks"] == [0, 1, 2, 3]
    assert finding.where[0].line == 12


def test_same_exception_where_one_rank_was_ended_by_the_launcher_is_c205() -> None:
    job = ended().ends(3, signal=15, after_launcher_kill=True)
    for rank in range(3):
        job.raises(rank, "KeyError", "'lr'", [RECORDS, MODULE]).ends(rank, code=1)

    assert job.codes() == ["C205"]


def test_different_exceptions_are_not_c205() -> None:
    job = ended().raises(0, "KeyError", "'lr'", [RECORDS])
    job.raises(1, "ValueError", "x", [RECORDS])
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("C204", [0, 1])


def test_kill_from_outside_is_c201() -> None:
    finding = with_victims(ended(), (0, 1, 3)).ends(2, signal=9).finding()

    assert (finding.code, finding.culprits.ranks) == ("C201", [2])
    assert finding.details["signal"] == "SIGKILL"


def test_kills_by_the_launcher_after_a_failure_are_not_c201() -> None:
    job = ended().raises(2, "ValueError", "x", [RECORDS]).ends(2, code=1)
    job.ends(0, signal=15, after_launcher_kill=True).ends(1, signal=9)

    assert job.codes() == ["C204"]


def test_sigterm_beside_a_sigkill_is_the_launchers() -> None:
    job = ended().ends(1, signal=9)
    for rank in (0, 2, 3):
        job.ends(rank, signal=15)

    assert job.finding().culprits.ranks == [1]


def test_segmentation_fault_is_c203_with_the_line() -> None:
    job = with_victims(ended(), (0, 1, 3)).ends(2, signal=11)
    stack = ThreadStack(1, "", (at("/job/labels.py", 15, "read_label"), MODULE), is_main=True)
    job.fatals.append(FatalStack(2, "Segmentation fault", (stack,)))
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("C203", [2])
    assert finding.where[0].line == 15
    assert finding.details["signal"] == "SIGSEGV"


def test_abort_in_a_collective_after_a_kill_is_a_victim() -> None:
    job = ended().ends(2, signal=9).ends(0, signal=6)
    stack = ThreadStack(1, "", (LIBRARY, at("/job/train.py", 10), MODULE), is_main=True)
    job.fatals.append(FatalStack(0, "Aborted", (stack,)))

    assert job.finding().culprits.ranks == [2]


def test_end_with_a_code_of_its_own_is_c204_likely() -> None:
    finding = with_victims(ended(), (0, 1, 3)).ends(2, code=3).finding()

    assert (finding.code, finding.confidence) == ("C204", Confidence.LIKELY)
    assert finding.culprits.ranks == [2]
    assert "exit code 3" in finding.summary


def test_end_with_zero_whose_peers_lost_it_is_h103() -> None:
    finding = with_victims(ended(), (0, 1, 3)).ends(2, code=0).finding()

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])


def test_lost_connections_alone_are_c209_and_name_nobody() -> None:
    finding = with_victims(ended(), (0, 1, 3)).finding()

    assert (finding.code, finding.culprits.ranks) == ("C209", [])


def test_time_limits_with_evidence_are_a_stuck_scene() -> None:
    job = ended().steps()
    for rank in (0, 1, 3):
        # The recorder retires an op that failed.
        job.ops([rank], "all_reduce", [at("/job/train.py", 10), MODULE])
        job.raises(rank, "RuntimeError", TIMED_OUT, [LIBRARY, MODULE]).ends(rank, code=1)
    job.stands(2, (at("/job/features.py", 7, "wait_for_quota"), MODULE))
    job.ends(2, signal=15, after_launcher_kill=True)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert finding.where[0].line == 7


def test_time_limits_alone_are_c211_and_name_nobody() -> None:
    job = ended()
    for rank in range(3):
        job.raises(rank, "RuntimeError", TIMED_OUT, [LIBRARY, MODULE])
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("C211", [])


def test_clean_end_is_healthy() -> None:
    job = ended().of_kind("exit", command_exit=0)
    for rank in range(4):
        job.ends(rank, code=0)

    assert job.report().verdict is Verdict.HEALTHY


def test_failed_command_without_evidence_is_inconclusive() -> None:
    assert ended().report().verdict is Verdict.INCONCLUSIVE


def test_signal_from_outside_is_c207_and_blames_nobody() -> None:
    job = ended().of_kind("exit", outside_signal=15, command_exit=143)
    for rank in range(4):
        job.ends(rank, signal=15)
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.CRASHED
    assert (finding.code, finding.culprits.ranks) == ("C207", [])
    assert finding.details["signal"] == "SIGTERM"


def test_exception_before_a_signal_from_outside_is_the_cause() -> None:
    job = with_victims(ended(), (0, 1, 3)).of_kind("exit", outside_signal=15)
    job.raises(2, "IndexError", "list index out of range", [RECORDS, MODULE]).ends(2, code=1)

    assert job.codes() == ["C204"]


def test_job_that_moved_again_is_only_waiting() -> None:
    sleeping = [at("/job/features.py", 7, "fetch_quota"), at("/job/train.py", 8), MODULE]
    job = Job().steps().waits([0, 1, 3]).stands(2, sleeping)
    assert job.report().verdict is Verdict.STUCK

    report = job.of_kind("stall", closed_after_s=43.0).report()
    (finding,) = report.findings
    assert report.verdict is Verdict.WAITING
    assert (finding.code, finding.severity) == ("H101", Severity.NOTE)


def test_sigkill_at_once_with_others_is_not_the_launchers() -> None:
    job = ended().ends(1, signal=15, ended_ns=10**9)
    job.ends(2, signal=9, ended_ns=10**9 + 1, after_launcher_kill=True)
    for rank in (0, 3):
        job.ends(rank, signal=15, ended_ns=10**9 + 2, after_launcher_kill=True)
        job.raises(rank, "RuntimeError", CLOSED, [LIBRARY, MODULE])

    finding = job.finding()
    assert (finding.code, finding.culprits.ranks) == ("C201", [2])


def test_code_of_the_watcher_is_never_the_place() -> None:
    """A rank that is held at its exit stands in our own code, which says nothing of the job."""
    own = Frame("_receive_fds", "/venv/lib/whystuck/probe/wire.py", 55)
    main = Frame("main", "/usr/lib/python3.11/runpy.py", 1)
    assert make_places(0, [own]) == []
    assert [place.file for place in make_places(0, [own, main])] == [main.file]
