"""Numbers that mean the same op on all ranks, whenever each began to record."""

from __future__ import annotations

from tests.parse.ops.op_logs import ISSUE_FAILED, Ring

from whystuck.evidence.ops.log import Ops
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.table import merge_op_logs


def read(*rings: Ring) -> Ops:
    return merge_op_logs(LogFile(ring.rank, "a", parse_op_log(ring.data())) for ring in rings)


def places(ops: Ops, rank: int) -> list[int]:
    return [int(place) for place in ops.place[ops.rank == rank]]


def test_ranks_switched_on_between_two_steps_count_from_the_same_op() -> None:
    rings = [Ring(0), Ring(1)]
    for ring, first_step in zip(rings, (7, 8), strict=True):
        group = ring.group(base=-1, generation=2, step=first_step)
        for step in range(first_step, 11):
            ring.op(group=group, step=step).op("barrier", group=group, step=step)
    ops = read(*rings)

    assert places(ops, 0) == [-1, -1, 1, 2, 3, 4, 5, 6]
    assert places(ops, 1) == [1, 2, 3, 4, 5, 6]
    assert len(ops.teams) == 1


def test_ring_that_wrapped_after_a_switch_counts_from_its_first_whole_step() -> None:
    rings = [Ring(0, capacity=4), Ring(1)]
    for ring in rings:
        group = ring.group(base=-1, generation=2, step=7)
        for step in range(7, 11):
            ring.op(group=group, step=step).op("barrier", group=group, step=step)
    ops = read(*rings)

    assert places(ops, 0) == [-1, -1, 1, 2]
    assert places(ops, 1) == [-1] * 6 + [1, 2]


def test_ops_since_a_switch_of_a_job_without_steps_cannot_be_compared() -> None:
    ring = Ring(0)
    ring.op(group=ring.group(base=-1))

    assert places(read(ring), 0) == [-1]


def test_refused_op_is_not_counted_unless_it_is_the_last() -> None:
    ring = Ring(0)
    ring.group()
    ring.op().op(flags=ISSUE_FAILED).op().op("send", peer=1).op(flags=ISSUE_FAILED)

    assert places(read(ring), 0) == [1, -1, 2, 1, 3]


def test_monitored_barrier_that_failed_is_counted() -> None:
    ring = Ring(0)
    ring.group()
    ring.op("monitored_barrier", flags=ISSUE_FAILED).op()

    assert places(read(ring), 0) == [1, 2]


def test_group_that_its_rank_is_no_member_of_is_not_counted() -> None:
    ring = Ring(0)
    ring.op(group=ring.group("9", [2, 3]))

    assert places(read(ring), 0) == [-1]
    assert read(ring).team.tolist() == [-1]


def test_lives_of_a_group_are_apart() -> None:
    ring = Ring(0)
    for _ in range(2):
        ring.op(group=ring.group())
    ops = read(ring)

    assert ops.team.tolist() == [0, 1]
    assert [team.life for team in ops.teams] == [0, 1]
