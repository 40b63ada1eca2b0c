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


def _all_set_up(
    calls: tuple[int, ...], last: tuple[str, ...] = (), lines: tuple[int, ...] = ()
) -> Job:
    """Let all ranks wait in calls that set up groups, so many on each."""
    job = Job(len(calls)).steps()
    for rank, count in enumerate(calls):
        site = at("/job/train.py", lines[rank] if lines else 40, "make_groups")
        job.stands(rank, (*SETTING_UP, site, MODULE))
        begun = [*enumerate(last[rank].split(), 1)] if last else []
        job.beats.append(Beat(rank, 100 + rank, 0.1, group_calls=count, begun_groups=tuple(begun)))
    return job


SUBSET = (
    """
    rank = dist.get_rank()
    def make_groups():
        if rank in (0, 1, 3):
            dist.new_group([0, 1, 3])
    """
    + "\n" * 34
    + "        rest = dist.new_group()\n"
)


def test_rank_that_made_fewer_groups_is_named_while_all_wait_in_one_line() -> None:
    finding = _all_set_up((3, 3, 2, 3)).finding()

    assert (finding.code, finding.confidence.value) == ("H127", "likely")
    assert finding.culprits.ranks == [2]
    assert "rank 2 began to make 2 groups, ranks 0-1,3 3" in finding.summary
    assert (finding.where[0].rank, finding.where[0].line) == (2, 40)


@pytest.mark.parametrize("last", [(), ("0-1,3 0-3",) * 2 + ("0-3", "0-1,3 0-3")])
def test_call_that_some_ranks_alone_make_is_shown(last: tuple[str, ...]) -> None:
    job = _all_set_up((3, 3, 2, 3), last).source("/job/train.py", SUBSET)
    finding = job.finding()

    assert [(place.rank, place.line) for place in finding.where if place.line < 99] == [
        (2, 40),
        (0, 5),
        (0, 40),
    ]


def test_rank_that_made_more_groups_is_named() -> None:
    finding = _all_set_up((2, 2, 2, 3)).finding()

    assert (finding.code, finding.confidence.value) == ("H102", "likely")
    assert finding.culprits.ranks == [3]


def test_halves_that_made_other_numbers_of_groups_are_both_shown() -> None:
    finding = _all_set_up((3, 3, 2, 2)).finding()

    assert (finding.code, finding.confidence.value) == ("H127", "possible")
    assert finding.culprits.ranks == []
    assert {place.rank for place in finding.where} == {0, 2}


def test_rank_that_makes_another_group_at_the_same_line_is_named() -> None:
    finding = _all_set_up((2,) * 4, ("0-1", "0-1", "2-3", "0-1")).finding()

    assert (finding.code, finding.confidence.value) == ("H105", "likely")
    assert finding.culprits.ranks == [2]
    assert "as group 1 of the job, rank 2 makes one of ranks 2-3" in finding.summary


def test_halves_that_make_other_groups_are_both_shown() -> None:
    finding = _all_set_up((2,) * 4, ("0-1", "0-1", "2-3", "2-3"), (40, 40, 41, 41)).finding()

    assert (finding.code, finding.confidence.value) == ("H105", "possible")
    assert finding.culprits.ranks == []
    assert {(place.rank, place.line) for place in finding.where if place.line != 99} == {
        (0, 40),
        (2, 41),
    }


def test_ranks_that_wait_elsewhere_made_another_group_last() -> None:
    job = _part((1, 2), (0, 3))
    most = ((1, "0-2"), (2, "1-3"))
    orders = {0: most, 1: most, 2: most[:1], 3: ((1, "1-3"), (2, "0-2"))}
    job.beats = [
        Beat(rank, 100 + rank, 0.1, group_calls=3, begun_groups=orders[rank]) for rank in range(4)
    ]
    finding = job.finding()

    assert (finding.code, finding.confidence.value) == ("H105", "likely")
    assert finding.culprits.ranks == [3]


@pytest.mark.parametrize(
    ("code", "few", "most"),
    [
        ("H127", "0-3 2-3", "0-1 0-3"),
        ("H102", "0-1 0-3", "0-3 2-3"),
        ("H105", "0-1 0-3", "0-3 0-1"),
        ("H105", "0-1", "0-3"),
        ("H105", "0-1", "0-3 0-1"),
    ],
)
def test_next_groups_tell_what_the_odd_rank_did(code: str, few: str, most: str) -> None:
    finding = _all_set_up((3,) * 4, (most, most, few, most)).finding()

    assert (finding.code, finding.confidence.value) == (code, "likely")
    assert finding.culprits.ranks == [2]


def test_ranks_that_are_not_as_far_in_one_order_accuse_nobody() -> None:
    job = _all_set_up((3, 3, 2, 3), ("0-1 0-3", "0-1 0-3", "0-1", "0-1 0-3"))

    assert not {"H102", "H105", "H127"} & set(job.codes())


@pytest.mark.parametrize("last", [(), ("0-3",) * 4])
def test_ranks_that_make_one_group_accuse_nobody(last: tuple[str, ...]) -> None:
    assert not {"H102", "H105", "H127"} & set(_all_set_up((2,) * 4, last).codes())


def test_counts_that_are_not_known_accuse_nobody() -> None:
    assert not {"H102", "H105", "H127"} & set(_all_set_up((2, 2, 2, -1)).codes())
