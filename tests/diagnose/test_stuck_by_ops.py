"""Ranks whose ops do not match; and differences that are legal."""

from __future__ import annotations

from collections.abc import Sequence

from tests.diagnose.scenes import MODULE, WAITING, Job, at

from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ops.collectives import Frame

SOURCE = """\
def save(step):
    write(step)
    if rank == 0:
        dist.barrier()


def share(x):
    if odd(x):
        dist.broadcast(x)
    else:
        dist.all_reduce(x)


def metrics(batch):
    if not batch:
        return
    dist.all_reduce(batch)


def main():
    for step in range(100):
        dist.all_reduce(loss)
        save(step)
        share(step)
        metrics(step)
        dist.all_gather(result)
    dist.barrier()
    done()
"""
MAIN = "/job/train.py"
BARRIER_IN_SAVE = (at(MAIN, 4, "save"), at(MAIN, 23, "main"), MODULE)
LOSS = (at(MAIN, 22, "main"), MODULE)
BROADCAST = (at(MAIN, 9, "share"), at(MAIN, 24, "main"), MODULE)
SHARE = (at(MAIN, 11, "share"), at(MAIN, 24, "main"), MODULE)
METRICS = (at(MAIN, 17, "metrics"), at(MAIN, 25, "main"), MODULE)
GATHER = (at(MAIN, 26, "main"), MODULE)
AFTER = (at(MAIN, 27, "main"), MODULE)


def job(world: int = 4) -> Job:
    return Job(world).source(MAIN, SOURCE)


def loop(made: Job, steps: int = 3) -> Job:
    for _ in range(steps):
        made.ops(range(made.world), "all_reduce", LOSS)
        made.ops(range(made.world), "all_reduce", METRICS)
        made.ops(range(made.world), "all_gather", GATHER)
    return made


def hang(made: Job, ranks: Sequence[int], op: str, site: Sequence[Frame]) -> Job:
    made.ops(ranks, op, site, pending=True)
    for rank in ranks:
        made.stands(rank, (*WAITING, *site))
    return made


def one(made: Job, code: str) -> Finding:
    finding = made.finding()
    assert finding.code == code
    return finding


def test_extra_barrier_in_a_save_is_h102_with_its_line() -> None:
    made = hang(loop(job()), [0], "barrier", BARRIER_IN_SAVE)
    finding = one(hang(made, [1, 2, 3], "all_reduce", LOSS), "H102")

    assert finding.culprits.ranks == [0]
    assert finding.victims.ranks == "1-3"
    assert (finding.where[0].file, finding.where[0].line) == (MAIN, 4)
    assert finding.confidence is Confidence.CERTAIN
    assert "barrier in save (train.py:4)" in finding.summary


WRAPPERS = "/job/mylib/dist_utils.py"
WRAPPERS_SOURCE = """\
def reduce_mean(x):
    dist.all_reduce(x)


def barrier(label):
    dist.barrier()


def barrier_of_some(label):
    if label:
        dist.barrier()
"""
CALLERS_SOURCE = """\
def main():
    for step in range(100):
        reduce_mean(loss)
        if rank == 0:
            barrier("saved")
        barrier("step")
"""


def hang_behind_wrappers(line: int, function: str, *, only: bool = False) -> Finding:
    """Let rank 0 alone call a wrapper of the job's own, at line 5; all others call it at line 6."""

    def by(wrapper: Frame, caller: int) -> tuple[Frame, ...]:
        return wrapper, at(MAIN, caller, "main"), MODULE

    barrier, reduce = at(WRAPPERS, line, function), at(WRAPPERS, 2, "reduce_mean")
    made = Job(4).source(MAIN, CALLERS_SOURCE).source(WRAPPERS, WRAPPERS_SOURCE)
    for _ in range(3):
        made.ops(range(4), "all_reduce", by(reduce, 3))
        if not only:
            made.ops(range(4), "barrier", by(barrier, 6))
    hang(made, [0], "barrier", by(barrier, 5))
    return one(hang(made, [1, 2, 3], "all_reduce", by(reduce, 3)), "H102")


def test_extra_call_of_a_wrapper_that_all_call_is_named_at_its_caller() -> None:
    finding = hang_behind_wrappers(6, "barrier")

    assert (finding.where[0].file, finding.where[0].line) == (MAIN, 5)
    assert "barrier in main (train.py:5)" in finding.summary
    # The op itself is cited where it was issued.
    assert "(dist_utils.py:6)" in finding.because[0].text


def test_extra_call_that_may_have_parted_in_the_wrapper_is_named_there() -> None:
    for finding in (
        hang_behind_wrappers(11, "barrier_of_some"),
        hang_behind_wrappers(6, "barrier", only=True),
    ):
        assert finding.where[0].file == WRAPPERS
        assert finding.where[1].file == MAIN


def test_extra_op_of_one_kind_is_found_where_it_began_not_where_it_hangs() -> None:
    made = loop(job())
    made.ops([1], "barrier", BARRIER_IN_SAVE)
    made.ops([1], "barrier", AFTER, times=4)
    made.ops([0, 2, 3], "barrier", AFTER, times=5)
    hang(made, [1], "barrier", AFTER)
    finding = one(hang(made, [0, 2, 3], "all_reduce", LOSS), "H102")

    assert (finding.culprits.ranks, finding.where[0].line) == ([1], 4)


def test_alternating_shifted_barriers_are_h102() -> None:
    made = loop(job())
    made.ops([3], "barrier", BARRIER_IN_SAVE)
    for _ in range(3):
        made.ops(range(4), "barrier", AFTER)
        made.ops(range(4), "barrier", GATHER)
    made.ops([0, 1, 2], "barrier", AFTER, pending=False)
    hang(made, [3], "barrier", AFTER)
    # The others have gone on, past the last barrier, to the next collective.
    finding = one(hang(made, [0, 1, 2], "all_reduce", LOSS), "H102")

    assert (finding.culprits.ranks, finding.where[0].line) == ([3], 4)


def test_skipped_all_reduce_is_h127_with_the_skipped_line() -> None:
    made = loop(job())
    made.ops(range(4), "all_reduce", LOSS)
    hang(made, [3], "all_gather", GATHER)
    finding = one(hang(made, [0, 1, 2], "all_reduce", METRICS), "H127")

    assert finding.culprits.ranks == [3]
    assert finding.where[0].line == 17
    assert finding.details["skipped"].endswith("(train.py:17)")


def test_skip_without_frames_is_found_from_ops_alone() -> None:
    made = job()
    for _ in range(3):
        for op in ("all_reduce", "all_gather", "barrier"):
            made.ops(range(4), op)
    made.ops([0, 1, 2], "all_reduce", pending=True)
    made.ops([3], "all_gather", pending=True)
    finding = one(made, "H127")

    assert finding.culprits.ranks == [3]


def test_skip_in_a_group_of_two_is_decided_by_history() -> None:
    made = loop(job(2))
    made.ops([0, 1], "all_reduce", LOSS)
    hang(made, [1], "all_gather", GATHER)
    finding = one(hang(made, [0], "all_reduce", METRICS), "H127")

    assert finding.culprits.ranks == [1]


def test_extra_op_in_a_group_of_two_is_decided_by_history() -> None:
    made = hang(loop(job(2)), [1], "barrier", BARRIER_IN_SAVE)
    finding = one(hang(made, [0], "all_reduce", LOSS), "H102")

    assert finding.culprits.ranks == [1]


def test_tie_without_history_names_both_sides_as_possible() -> None:
    made = Job(2)
    made.ops([0], "all_reduce", [at("/job/a.py", 3, "a")], pending=True)
    made.ops([1], "broadcast", [at("/job/b.py", 3, "b")], pending=True)
    finding = one(made, "H105")

    assert finding.culprits.ranks == [0, 1]
    assert finding.confidence is Confidence.POSSIBLE


def test_other_branch_with_another_op_is_h105() -> None:
    made = job()
    made.ops(range(4), "all_reduce", SHARE, times=4)
    hang(made, [2], "broadcast", BROADCAST)
    finding = one(hang(made, [0, 1, 3], "all_reduce", SHARE), "H105")

    assert (finding.culprits.ranks, finding.where[0].line) == ([2], 9)
    assert finding.details["ops"]["2"] == "broadcast"


def test_branches_that_issue_one_op_are_legal() -> None:
    made = job()
    made.ops([0], "all_reduce", BROADCAST, times=3)
    made.ops([1, 2, 3], "all_reduce", SHARE, times=3)
    hang(made, [0, 1, 2], "all_reduce", LOSS)
    finding = one(made.stands(3, (at(MAIN, 2, "save"), MODULE)), "H101")

    assert finding.culprits.ranks == [3]


def test_call_sites_that_meet_again_accuse_nobody() -> None:
    made = job()
    for _ in range(4):
        made.ops([0], "broadcast", [at(MAIN, 2, "send_config"), MODULE])
        made.ops([1, 2, 3], "broadcast", [at(MAIN, 3, "receive_config"), MODULE])
        made.ops(range(4), "all_reduce", LOSS)
    made.ops([0], "broadcast", [at(MAIN, 2, "send_config"), MODULE])
    made.ops([1, 2, 3], "broadcast", [at(MAIN, 3, "receive_config"), MODULE])
    hang(made, [0, 1, 2], "all_reduce", LOSS)
    finding = one(made.stands(3, (at(MAIN, 2, "save"), MODULE)), "H101")

    assert finding.culprits.ranks == [3]


def test_rank_at_the_barrier_after_the_loop_is_h103() -> None:
    made = hang(loop(job()), [2], "barrier", AFTER)
    finding = one(hang(made, [0, 1, 3], "all_reduce", LOSS), "H103")

    assert finding.culprits.ranks == [2]
    assert finding.where[0].line == 27
    assert finding.where[-1].line == 22


def test_rank_after_the_loop_whose_other_size_ended_the_job_is_h103() -> None:
    made = hang(loop(job()), [0, 1, 3], "all_reduce", LOSS)
    made.ops([2], "all_reduce", AFTER, pending=True, input_sizes=[[2]])
    made.of_kind("exit", command_exit=1).ends(2, signal=6)
    for rank in (0, 1, 3):
        made.ends(rank, signal=15, after_launcher_kill=True)
        made.raises(rank, "RuntimeError", "Connection closed by peer [127.0.0.1]:1")
    finding = made.report().findings[0]

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert finding.where[0].line == 27


def test_ranks_that_left_while_one_goes_on_are_the_ones_that_left() -> None:
    made = hang(loop(job()), [2], "all_reduce", LOSS)
    finding = one(hang(made, [0, 1, 3], "barrier", AFTER), "H103")

    assert finding.culprits.ranks == [0, 1, 3]


def test_other_shape_at_one_line_is_h106_with_both_shapes() -> None:
    made = loop(job())
    made.ops([1], "all_reduce", LOSS, pending=True, input_sizes=[[41]])
    finding = one(made.ops([0, 2, 3], "all_reduce", LOSS, pending=True), "H106")

    assert finding.culprits.ranks == [1]
    assert finding.details["shapes"] == {"0": [4], "1": [41], "2": [4], "3": [4]}
    assert finding.where[0].line == 22


def test_shape_is_found_without_the_dump_of_the_rank_that_aborted() -> None:
    made = loop(job())
    made.ops([1], "all_reduce", LOSS, pending=True, input_sizes=[[41]])
    made.ops([0, 2, 3], "all_reduce", LOSS, pending=True)
    del made.entries[0]
    made.of_kind("exit", command_exit=1).ends(0, signal=6)
    made.raises(2, "RuntimeError", "Connection closed by peer", [MODULE])

    assert one(made, "H106").culprits.ranks == [1]


def test_shape_in_a_group_of_two_is_decided_by_history() -> None:
    made = loop(job(2))
    made.ops([0], "all_reduce", LOSS, pending=True, input_sizes=[[41]])

    assert one(made.ops([1], "all_reduce", LOSS, pending=True), "H106").culprits.ranks == [0]


def test_sizes_that_may_differ_accuse_nobody() -> None:
    made = job()
    made.ops([0], "scatter", LOSS, input_sizes=[[4], [4]])
    made.ops([1, 2, 3], "scatter", LOSS, input_sizes=[])
    hang(made, [0, 1, 2], "all_reduce", LOSS)

    assert one(made.stands(3, (at(MAIN, 2, "save"), MODULE)), "H101").culprits.ranks == [3]


def test_other_dtype_at_one_line_is_h107_with_both_types() -> None:
    made = loop(job())
    made.ops([3], "all_reduce", LOSS, pending=True, input_dtypes=["Double"])
    finding = one(made.ops([0, 1, 2], "all_reduce", LOSS, pending=True), "H107")

    assert finding.culprits.ranks == [3]
    assert finding.details["dtypes"]["3"] == "Double"
    assert finding.details["dtypes"]["0"] == "Float"


def test_ranks_behind_a_diverged_rank_are_victims() -> None:
    made = loop(job())
    # Rank 2 has not come as far as the others; it still waits in the op before.
    hang(made, [0], "barrier", BARRIER_IN_SAVE)
    hang(made, [1, 3], "all_reduce", LOSS)
    made.stands(2, (*WAITING, *GATHER))
    finding = one(made, "H102")

    assert finding.culprits.ranks == [0]


def test_two_groups_in_opposite_order_are_h104() -> None:
    made = Job(2)
    made.members = {"0": (0, 1), "a": (0, 1), "b": (0, 1)}
    made.ops([0], "all_reduce", [at(MAIN, 3)], group="a", pending=True)
    made.ops([1], "all_reduce", [at(MAIN, 8)], group="b", pending=True)
    finding = one(made, "H104")

    assert finding.culprits.ranks == [0, 1]
    assert finding.culprits.groups == ["a", "b"]
    assert {(place.rank, place.line) for place in finding.where} == {(0, 3), (1, 8)}


def test_rings_of_different_length_are_aligned_by_number() -> None:
    made = loop(job(), steps=6)
    made.entries[1] = made.entries[1][7:]
    made.entries[3] = made.entries[3][2:]
    hang(made, [0, 1, 3], "all_reduce", LOSS)
    # Numbers go on from what was dropped, as in a ring that wrapped.
    for rank in (1, 3):
        made.entries[rank][-1]["collective_seq_id"] = 19

    assert one(made.stands(2, (at(MAIN, 2, "save"), MODULE)), "H101").culprits.ranks == [2]


def test_all_in_one_op_accuses_no_rank_but_the_transfer() -> None:
    finding = hang(loop(job()), [0, 1, 2, 3], "all_reduce", LOSS).finding()

    assert (finding.code, finding.culprits.ranks, finding.culprits.groups) == ("H122", [], ["0"])
    assert finding.confidence is Confidence.CERTAIN
    assert finding.details["unfinished"] == "0-3"
