"""Ranks that set up a group, which others of the job did not come to."""

from __future__ import annotations

import pytest
from tests.diagnose.scenes import C10D, MODULE, Job, at

from whystuck.evidence.live import Beat
from whystuck.evidence.ops.collectives import Frame

GROUPS = at("/job/train.py", 40, "make_groups")
SETTING_UP = (
    Frame("_new_process_group_helper", C10D, 2169),
    Frame("_new_group_with_tag", C10D, 6056),
    Frame("new_group", C10D, 5863),
    Frame("wrapper", C10D.replace("distributed_c10d", "c10d_logger"), 83),
)


def _part(callers: tuple[int, ...], waiting: tuple[int, ...]) -> Job:
    job = Job().steps().waits(waiting, 12)
    for rank in callers:
        job.stands(rank, (*SETTING_UP, GROUPS, MODULE))
    return job


def test_ranks_that_do_not_come_to_a_new_group_are_named_with_its_line() -> None:
    finding = _part((0, 1, 2), (3,)).finding()

    assert (finding.code, finding.confidence.value) == ("H127", "likely")
    assert finding.culprits.ranks == [3]
    assert [(place.rank, place.line) for place in finding.where[:2]] == [(3, 40), (3, 12)]
    assert "rank 3 did not call new_group" in finding.summary


def test_members_that_call_and_go_on_are_told_apart_by_counts() -> None:
    job = _part((0,), (1, 2, 3))
    job.beats = [Beat(rank, 100 + rank, 0.1, group_calls=3 - (rank == 2)) for rank in range(4)]
    finding = job.finding()

    assert (finding.code, finding.confidence.value) == ("H127", "likely")
    assert finding.culprits.ranks == [2]


def test_most_ranks_that_do_not_call_are_possible_only() -> None:
    job = _part((0,), (1, 2, 3))
    job.beats = [Beat(rank, 100 + rank, 0.1, group_calls=2 + (rank == 0)) for rank in range(4)]
    finding = job.finding()

    assert (finding.code, finding.confidence.value) == ("H127", "possible")
    assert finding.culprits.ranks == [1, 2, 3]


def test_without_counts_nobody_of_several_is_named() -> None:
    finding = _part((0,), (1, 2, 3)).finding()

    assert (finding.code, finding.confidence.value) == ("H127", "possible")
    assert finding.culprits.ranks == []
    assert finding.where[0].line == 40


def test_rank_that_may_yet_come_is_where_it_is() -> None:
    job = _part((0, 1), (3,)).stands(2, (at("/job/train.py", 50, "read"), MODULE))
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


@pytest.mark.parametrize("text", ["dist.new_group(m, use_local_synchronization=True)"])
def test_groups_that_members_alone_set_up_accuse_nobody(text: str) -> None:
    job = _part((0, 1, 2), (3,)).source("/job/train.py", text)

    assert "H127" not in job.codes()
