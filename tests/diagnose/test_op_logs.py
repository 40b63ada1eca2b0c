"""Verdicts from op logs: alone, beside dumps of a recorder, and against them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, at
from tests.parse.ops.op_logs import ASYNC, BOOT_NS, ISSUE_FAILED, MS, NO_END, THREAD

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.summaries.recorded import Coded, make_tables
from whystuck.evidence.finding import Confidence, Verdict
from whystuck.evidence.live import PeerWait

TRAIN = "/job/train.py"


def test_rank_that_never_came_is_named() -> None:
    finding = Logged().steps().waits([0, 1, 3]).finding()

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H101", [2], "0-1,3")
    assert finding.because[-1].artifact.endswith("ops.ring")


def test_ranks_that_all_came_are_not_blamed() -> None:
    assert Logged().steps().waits(range(4)).finding().code == "H122"


def test_job_that_waits_for_nothing_is_healthy() -> None:
    logged = Logged().steps()
    logged.job.of_kind("files")

    assert logged.report().verdict is Verdict.HEALTHY
    assert logged.report().coverage.sources == ["op log"]


def test_extra_barrier_is_named_with_its_line() -> None:
    logged = Logged().steps().op([0], "barrier", line=44)
    logged.op(range(1, 4)).waits([0], line=10)
    finding = logged.waits(range(1, 4), "barrier", line=60).report().findings[0]

    assert (finding.code, finding.culprits.ranks, finding.where[0].line) == ("H102", [0], 44)


def _broadcast(logged: Logged, roots: dict[int, int], **more: Any) -> Logged:
    for rank, root in roots.items():
        logged.op([rank], "broadcast", root=root, line=60, **more)
    return logged


def test_broadcast_from_another_root_is_h105_with_both_roots() -> None:
    logged = Logged(3).steps()
    for root in range(3):
        _broadcast(logged, dict.fromkeys(range(3), root))
    finding = _broadcast(logged, {0: 1, 1: 2, 2: 1}, takes_ns=None).finding()

    assert (finding.code, finding.culprits.ranks, finding.where[0].line) == ("H105", [1], 60)
    assert finding.details["roots"] == {"0": 1, "1": 2, "2": 1}
    assert "with root 2, where the others have root 1" in finding.summary


def test_two_roots_of_two_ranks_name_no_side() -> None:
    finding = _broadcast(Logged(2).steps(), {0: 0, 1: 1}, takes_ns=None).finding()

    assert (finding.code, finding.confidence) == ("H105", Confidence.POSSIBLE)
    assert finding.culprits.ranks == [0, 1]
    assert "with root 0" in finding.summary
    assert "with root 1" in finding.summary


def test_roots_of_ops_that_are_over_are_not_compared() -> None:
    logged = _broadcast(Logged(3).steps(), {0: 0, 1: 1, 2: 0}).waits([0, 1])

    assert logged.finding().code == "H101"


def test_monitored_barrier_is_one_op_of_the_group() -> None:
    logged = Logged().steps().waits([0], "monitored_barrier", returned_ns=0, line=50)
    logged.waits([1, 3], "monitored_barrier", returned_ns=0, line=50)

    assert logged.finding().culprits.ranks == [2]


@pytest.mark.parametrize("op", ["recv", "send"])
def test_ring_of_transfers_is_certain_with_its_lines(op: str) -> None:
    logged = Logged(3).steps()
    for rank in range(3):
        logged.waits([rank], op, peer=(rank + 1) % 3, line=70 + rank)
    finding = logged.finding()

    assert (finding.code, finding.confidence) == ("H109", Confidence.CERTAIN)
    assert finding.culprits.ranks == [0, 1, 2]
    assert {(place.rank, place.line) for place in finding.where if place.line != 99} == {
        (0, 70),
        (1, 71),
        (2, 72),
    }


def test_ring_of_ranks_that_never_met_is_possible_only() -> None:
    logged = Logged(3).steps()
    for one, other, times in ((0, 1, 1), (0, 2, 2)):
        for _ in range(times):
            logged.op([one], "send", peer=other).op([other], "recv", peer=one)
    for rank, peer in ((0, 1), (1, 2), (2, 0)):
        logged.waits([rank], "send", peer=peer, line=70)
    finding = logged.finding()

    assert (finding.code, finding.confidence) == ("H109", Confidence.POSSIBLE)
    assert "rank 2 made transfers before, but none with rank 1" in finding.summary


def test_transfers_of_which_both_halves_are_posted_are_no_ring() -> None:
    logged = Logged(2).steps()
    logged.waits([0], "send", peer=1).waits([1], "recv", peer=0)

    assert logged.finding().code == "H122"


def test_first_receive_that_nobody_sends_to_may_be_either_ranks_mistake() -> None:
    logged = Logged(2).steps().waits([0], "recv", peer=1, line=70).waits([1], line=10)
    finding = logged.finding()

    assert (finding.code, finding.confidence) == ("H110", Confidence.LIKELY)
    assert finding.culprits.ranks == [1]
    assert [(place.rank, place.line) for place in finding.where if place.line != 99] == [
        (1, 10),
        (0, 70),
    ]


def test_messages_of_two_tags_are_not_one() -> None:
    logged = Logged(2).steps().waits([0], "send", peer=1, tag=3, line=70)
    finding = logged.waits([1], "recv", peer=0, tag=4, line=71).finding()

    assert (finding.code, finding.confidence) == ("H110", Confidence.POSSIBLE)
    assert finding.culprits.ranks == [0, 1]
    assert "tag 3" in finding.summary
    assert "tag 4" in finding.summary


def test_message_that_was_sent_before_is_no_ring() -> None:
    logged = Logged(2).steps().op([0], "send", peer=1)
    logged.waits([0], "recv", peer=1).waits([1], "recv", peer=0)

    assert logged.finding().culprits.ranks != [0, 1]


def test_third_receive_of_a_pair_waits_for_the_third_send() -> None:
    logged = Logged(2).steps()
    for _ in range(2):
        logged.op([0], "send", peer=1).op([1], "recv", peer=0)
    finding = logged.waits([1], "recv", peer=0, line=80).waits([0], line=10).finding()

    assert (finding.code, finding.culprits.ranks) == ("H110", [0])


def test_ring_that_wrapped_tells_the_cycle_with_less_certainty() -> None:
    logged = Logged(2, capacity=8).steps(20)
    finding = logged.waits([0], "recv", peer=1).waits([1], "recv", peer=0).finding()

    assert (finding.code, finding.confidence) == ("H109", Confidence.LIKELY)


def test_receive_from_any_rank_waits_for_all_others() -> None:
    logged = Logged(3).steps().waits([0], "recv_any", peer=-1)
    logged.waits([1], "recv", peer=0, line=71).waits([2], "recv", peer=0, line=72)

    assert logged.finding().code == "H109"


def test_receive_from_any_rank_is_met_by_a_send() -> None:
    logged = Logged(3).steps().waits([0], "recv_any", peer=-1).waits([1], "send", peer=0)

    assert logged.waits([2], "recv", peer=0).report().findings[0].code != "H109"


def test_source_of_a_receive_from_any_rank_counts_in_its_pair() -> None:
    logged = Logged(2).steps().op([1], "send", peer=0).op([0], "recv_any", peer=-1, extra=2)
    finding = logged.waits([0], "recv", peer=1).waits([1]).finding()

    assert (finding.code, finding.culprits.ranks) == ("H110", [1])


def test_group_that_is_not_in_rank_order_has_its_peers() -> None:
    logged = Logged(4).steps()
    for rank in (1, 3):
        ring = logged.rings[rank]
        # Position 0 is rank 3.
        ring.op("recv", group=ring.group("5", [3, 1]), peer=int(rank == 3), takes_ns=None)
    logged.waits([0, 2])
    ring_of = logged.report().findings[0].details["ring"]

    assert sorted(ring_of) == [1, 3]


def test_transfer_in_the_background_is_not_what_its_rank_waits_in() -> None:
    logged = Logged(3).steps().waits([0], "recv", peer=1).waits([1], "recv", peer=0)
    # Both go on to a barrier, to which rank 2 never comes.
    finding = logged.waits([0, 1], "barrier").finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


def test_op_that_was_refused_is_not_counted() -> None:
    logged = Logged().steps().op([1], flags=ISSUE_FAILED, takes_ns=None).steps(3)

    assert logged.waits([0, 1, 3]).finding().culprits.ranks == [2]


def test_recorder_and_log_are_not_mixed_in_one_group() -> None:
    """The recorder of gloo numbers ops in another way than op logs do."""
    logged = Logged().op(range(4), "reduce_scatter").steps().waits([0, 1, 3])
    for rank in (0, 1, 3):
        logged.job.ops([rank], "all_reduce", [at(TRAIN, 9), MODULE], times=4)
        logged.job.ops([rank], "all_reduce", [at(TRAIN, 10), MODULE], times=5)
        logged.job.ops([rank], "all_reduce", [at(TRAIN, 10), MODULE], pending=True)
    finding = logged.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert logged.evidence().collectives.seq.max() == 7


def test_rank_without_a_log_makes_the_recorder_the_source() -> None:
    logged = Logged().op(range(4), "reduce_scatter").steps().waits([0, 1, 3]).without(1)
    logged.job.steps().waits([0, 1, 3])
    finding = logged.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert finding.because[-1].artifact.endswith("fr.pickle")


def test_ranks_of_which_each_has_only_one_source_are_not_compared() -> None:
    logged = Logged(2).op(range(2), "reduce_scatter").steps().waits(range(2)).without(1)
    logged.job.ops([1], "all_reduce", [at(TRAIN, 9), MODULE], times=4).steps()
    logged.job.entries.pop(0)
    report = logged.report()

    assert report.findings == []
    assert any("cannot be compared" in gap.reason for gap in report.gaps)


def test_switch_that_not_all_ranks_have_followed_leaves_the_recorder() -> None:
    logged = Logged().steps(2)
    for rank in (0, 1):
        ring = logged.rings[rank]
        again = ring.group(base=-1, generation=2)
        ring.op(group=again, takes_ns=None)
    logged.job.steps()

    assert {dump.is_op_log for dump in logged.evidence().collectives.dumps} == {True, False}
    assert logged.evidence().collectives.done.all()


def test_limits_come_from_the_recorder() -> None:
    logged = Logged(2).steps().waits([0])
    logged.job.steps().ops([0], "all_reduce", [at(TRAIN, 10)], pending=True)
    table = logged.evidence().collectives

    assert set(table.timeout_ms[table.rank == 0].tolist()) == {1_800_000}


def test_frames_come_from_the_recorder_where_the_log_has_none() -> None:
    logged = Logged(2)
    for rank in range(2):
        logged.rings[rank].op(site=0, at_ns=5000 * MS)
        logged.job.ops(
            [rank], "all_reduce", [at(TRAIN, 12)], time_created_ns=BOOT_NS + 5000 * MS + 500
        )
    table = logged.evidence().collectives

    assert [table.sites[number].frames[0].line for number in table.site.tolist()] == [12, 12]
    assert table.dumps[int(table.artifact[0])].is_op_log


def test_group_on_a_device_stays_with_the_recorder() -> None:
    logged = Logged(2)
    for rank in range(2):
        ring = logged.rings[rank]
        ring.op(group=ring.group("1", backend="nccl"), flags=ASYNC, device="cuda")
        logged.job.ops([rank], "nccl:all_reduce", [at(TRAIN, 12)], group="1")
    table = logged.evidence().collectives

    assert len(table) == 2
    assert not any(table.dumps[number].is_op_log for number in table.artifact.tolist())


def test_group_on_a_device_without_dumps_comes_from_the_log() -> None:
    logged = Logged(2)
    for rank in range(2):
        ring = logged.rings[rank]
        ring.op(group=ring.group("1", backend="nccl"), flags=ASYNC, device="cuda")

    assert [form.backend for form in logged.evidence().collectives.forms] == ["nccl"]


def _on_devices(*counts: int) -> Logged:
    """Make a job whose ranks have issued some ops on devices, each on a line of its own."""
    logged = Logged(len(counts))
    for rank, count in enumerate(counts):
        ring = logged.rings[rank]
        group = ring.group("1", backend="nccl")
        for number in range(count):
            ring.op(group=group, flags=NO_END, device="cuda", takes_ns=None, line=10 + number)
    return logged


def test_ops_on_devices_whose_ends_nobody_saw_are_neither_pending_nor_done() -> None:
    evidence = _on_devices(5, 5, 5).evidence()
    report = diagnose(evidence)

    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.findings
    (ops, *_) = make_tables(evidence)
    states = ops.columns["state"]
    assert isinstance(states, Coded)
    assert {states.values[code] for code in states.codes.tolist()} == {"end unknown"}
    assert not evidence.collectives.completed_ns.any()


def test_op_on_devices_that_a_rank_has_not_come_to_is_pending() -> None:
    report = _on_devices(5, 5, 4, 5).report()
    (finding,) = report.findings

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H101", [2], "0-1,3")
    (timeline,) = report.timeline
    assert [[part.state for part in op.classes] for op in timeline.ops] == [
        *[["end unknown"]] * 4,
        ["pending", "absent"],
    ]


def test_rank_that_issued_nothing_on_devices_is_named() -> None:
    (finding,) = _on_devices(3, 0, 3).report().findings

    assert (finding.code, finding.culprits.ranks) == ("H101", [1])


def test_log_goes_before_what_a_look_into_the_rank_tells() -> None:
    logged = Logged(2).steps().waits([0], "recv", peer=1, line=70).waits([1])
    known = logged.evidence()
    seen = PeerWait(rank=0, kind="recv", peer=1, group="0", count=1, artifact="peers.json")
    (finding,) = diagnose(replace(known, peer_waits=(seen,))).findings

    assert (finding.code, finding.confidence) == ("H110", Confidence.LIKELY)
    assert finding.because[0].artifact.endswith("ops.ring")


@pytest.mark.parametrize("skipped", [None, 9])
def test_ring_that_wrapped_is_matched_by_steps(skipped: int | None) -> None:
    """A pipeline of two stages that has run long; the sender leaves out one message at most."""
    logged = Logged(2, capacity=16)
    for step in range(10):
        for _ in range(2):
            if step != skipped:
                logged.op([0], "send", peer=1, flags=ASYNC, takes_ns=None, step=step)
            is_last = step == 9 and skipped is not None
            logged.op([1], "recv", peer=0, takes_ns=None if is_last else MS, step=step, line=80)
            if is_last:
                break
    report = logged.waits([0], line=10, step=9).report()

    if skipped is None:
        assert [finding.code for finding in report.findings] == ["H101"]
    else:
        (finding,) = report.findings
        assert (finding.code, finding.culprits.ranks) == ("H110", [0])
        assert finding.confidence is Confidence.LIKELY


def test_peer_without_a_log_is_only_possibly_at_fault() -> None:
    logged = Logged(3).steps()
    for rank in range(3):
        logged.waits([rank], "recv", peer=(rank + 1) % 3)
    findings = logged.without(1).report().findings

    assert all(finding.confidence is Confidence.POSSIBLE for finding in findings)


def test_log_of_one_rank_adds_its_receive_to_the_dumps_of_all() -> None:
    logged = Logged(3).steps().waits([0], "recv", peer=1, line=70).without(1, 2)
    logged.job.steps().waits([1, 2])
    logged.job.stacks.clear()
    logged.job.processes.clear()
    findings = logged.report().findings

    assert [(one.code, one.culprits.ranks) for one in findings] == [("H110", [1])]
    assert findings[0].confidence is Confidence.POSSIBLE


def test_an_op_that_a_rank_had_no_room_to_tell_is_no_other_op() -> None:
    unsized = {"in": [], "out": [], "dtypes": [], "in_bytes": -1, "out_bytes": -1}
    for op, form in (("all_reduce", unsized), ("", {})):
        logged = Logged(4).steps()
        logged.op([0, 1, 2]).op([3], op, **form)
        logged.waits([0, 1, 2])
        names = {finding.code for finding in logged.report().findings}
        assert not names & {"H105", "H106", "H107"}, names


def test_two_threads_in_one_group_are_told_before_the_network() -> None:
    logged = Logged(2).steps()
    for ring in logged.rings.values():
        ring.value(THREAD, {"name": "AsyncCheckpointExecutor_0", "id": 200})
    logged.waits(range(2), thread=1)
    logged.waits(range(2), "all_gather", thread=2)
    finding = logged.finding()

    assert (finding.code, finding.confidence) == ("H122", Confidence.POSSIBLE)
    assert finding.culprits.ranks == []
    assert finding.details["threads"] == ["MainThread", "AsyncCheckpointExecutor_0"]
    assert "different order" in finding.summary
    assert "new_group" in finding.remedies[0]


def test_two_ops_of_one_thread_tell_of_the_network() -> None:
    logged = Logged(2).steps()
    finding = logged.waits(range(2)).waits(range(2), "all_gather").finding()

    assert (finding.code, finding.confidence) != ("H122", Confidence.POSSIBLE)
    assert "threads" not in finding.details


def test_order_of_two_threads_that_differs_blames_no_rank() -> None:
    logged = Logged(2).steps()
    for ring in logged.rings.values():
        ring.value(THREAD, {"name": "AsyncCheckpointExecutor_0", "id": 200})
    logged.waits([0], thread=1).waits([0], "all_gather", thread=2, line=20)
    logged.waits([1], "all_gather", thread=2, line=20).waits([1], thread=1)
    finding = logged.finding()

    assert finding.confidence is Confidence.POSSIBLE
    assert finding.culprits.ranks == []
    assert "different order" in finding.summary
