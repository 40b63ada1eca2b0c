"""Splits that ranks print before an all-to-all in which they wait, and look-alikes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

FORMS = {
    "megatron": "[rank{0}]: layer 3 input_splits={1} output_splits={2}",
    "task": "{0}: [L3] in_splits={1} out_splits={2}",
    "named": "rank {0} step 90: input_split_sizes: {1}, output_split_sizes: {2}",
    "lines": "[rank{0}]: step 90 input_splits {1}\n[rank{0}]: step 90 output_splits {2}",
    "short": "[rank{0}]: dispatch send={1} recv={2}",
    "tensor": "[rank{0}]: iter 90 send_counts=tensor({1}) recv_counts=tensor({2})",
    "stamped": "2026-09-17 08:01:11.2{0}1 [rank{0}] mb 2 send_splits={1} recv_splits={2}",
}
WATCHDOG = (
    "[rank{0}]:[E917 08:12:20.774 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=4194304, NumelOut=4194304, "
    "Timeout(ms)=600000) ran for 600071 milliseconds before timing out."
)
EVEN = [[512] * 4, [512] * 4]
Lists = dict[int, list[list[int]]]


def paste(
    folder: Path, form: str, lists: Lists, *before: str, op: str = "ALLTOALL_BASE", late: int = -1
) -> Report:
    told = [FORMS[form].format(rank, *lists[rank]) for rank in lists]
    waits = [WATCHDOG.format(rank, 777 - (rank == late), op) for rank in lists]
    return say(folder, *before, *told, *waits)


def even(size: int = 4) -> Lists:
    return {rank: [[512] * size, [512] * size] for rank in (1, 0, *range(2, size))}


def uneven() -> Lists:
    """Splits by what each rank has, that fit."""
    sent = [[410, 330, 208, 76], [120, 644, 90, 170], [333, 21, 470, 200], [98, 402, 310, 214]]
    return {rank: [sent[rank], [row[rank] for row in sent]] for rank in range(4)}


@pytest.mark.parametrize("form", FORMS)
def test_rank_whose_splits_differ_from_those_of_all_is_named(tmp_path: Path, form: str) -> None:
    lists = even() | {2: [[512, 384, 512, 640], [512, 512, 512, 640]]}
    finding = first_of(paste(tmp_path, form, lists))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [2])
    assert finding.details["pair"] == [2, 1]
    assert (finding.details["sent"], finding.details["expected"]) == (384, 512)


@pytest.mark.parametrize("form", FORMS)
def test_rank_that_fits_no_other_one_is_named(tmp_path: Path, form: str) -> None:
    lists = uneven()
    lists[1][0] = [100, 644, 90, 190]
    finding = first_of(paste(tmp_path, form, lists))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [1])


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_that_do_not_fit_each_other_may_both_be_wrong(tmp_path: Path, form: str) -> None:
    lists = uneven()
    lists[1][0] = [119, 644, 90, 170]
    finding = first_of(paste(tmp_path, form, lists))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [])
    assert finding.details["pair"] == [1, 0]


def test_rank_that_had_other_splits_before_is_named(tmp_path: Path) -> None:
    lists = {0: [[8, 8], [8, 8]], 1: [[6, 8], [8, 8]]}
    before = [FORMS["short"].format(rank, [8, 8], [8, 8]) for rank in (0, 1, 0, 1)]
    finding = first_of(paste(tmp_path, "short", lists, *before))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [1])


def test_traceback_in_the_call_tells_that_ranks_wait(tmp_path: Path) -> None:
    lists = even() | {3: [[512, 512, 500, 512], [512] * 4]}
    told = [FORMS["megatron"].format(rank, *lists[rank]) for rank in lists]
    stack = [
        "### rank 0",
        "    all_to_all_single (torch/distributed/distributed_c10d.py:4103)",
        "    dispatch (moe/layer.py:61)",
        "    forward (moe/model.py:80)",
    ]
    finding = first_of(say(tmp_path, *told, *stack))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [3])


def list_splits(report: Report) -> list[str]:
    return [one.name for one in report.findings if one.name == "split-mismatch"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lists", [even(), uneven()])
def test_splits_that_fit_say_nothing(tmp_path: Path, form: str, lists: Lists) -> None:
    assert not list_splits(paste(tmp_path, form, lists))


ODD = even() | {2: [[512, 384, 512, 640], [512, 512, 512, 640]]}


def test_ranks_that_wait_in_another_call_say_nothing(tmp_path: Path) -> None:
    assert not list_splits(paste(tmp_path, "megatron", ODD, op="ALLREDUCE"))


def test_lists_of_two_calls_are_not_compared(tmp_path: Path) -> None:
    later = FORMS["megatron"].replace("layer 3", "layer 4").format(2, *EVEN)
    told = [FORMS["megatron"].format(rank, *ODD[rank]) for rank in ODD]
    waits = [WATCHDOG.format(rank, 777, "ALLTOALL_BASE") for rank in ODD]

    assert not list_splits(say(tmp_path, *told, later, *waits))
    assert not list_splits(paste(tmp_path, "short", ODD, late=2))


def test_lists_of_a_part_of_the_group_are_not_compared(tmp_path: Path) -> None:
    assert not list_splits(paste(tmp_path, "megatron", {rank: ODD[rank] for rank in (0, 1, 2)}))


def test_ranks_of_parts_of_the_job_are_no_ranks(tmp_path: Path) -> None:
    told = [f"[rank4]: ep rank {rank} in_splits={ODD[rank][0]}" for rank in ODD]
    waits = [WATCHDOG.format(rank, 777, "ALLTOALL_BASE") for rank in ODD]

    assert not list_splits(say(tmp_path, *told, *waits))


SEATS = [
    "[ep {0}] layer 3 input_splits={1} output_splits={2}",
    "ep_rank={0} step 90: send={1} recv={2}",
]
SPANS = ["[rank{0}]: layer 3 send splits to [0..3] = {1}  recv splits from [0..3] = {2}"]


def wrong(sender: int = 3, receiver: int = 2, by: int = 9) -> Lists:
    lists = uneven()
    lists[sender][0][receiver] += by
    return lists


def wait(*ranks: int, seq: int = 777) -> list[str]:
    return [WATCHDOG.format(rank, seq, "ALLTOALL_BASE") for rank in ranks]


@pytest.mark.parametrize("form", SEATS)
def test_seats_that_do_not_fit_are_told_and_no_ranks(tmp_path: Path, form: str) -> None:
    told = [form.format(seat, *lists) for seat, lists in wrong().items()]
    finding = first_of(say(tmp_path, *told, *wait(8, 11)))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [])
    assert "3 sends 319 to ep 2 in an all-to-all, which expects 310" in finding.summary
    assert "pair" not in finding.details
    assert finding.victims.ranks == "8,11"


@pytest.mark.parametrize(
    ("form", "ranks"),
    [*((form, (1, 2)) for form in SPANS), *((FORMS["megatron"], (0, 1, 2)),)],
    ids=["span", "first ones"],
)
def test_part_of_a_group_whose_lists_link_is_compared(
    tmp_path: Path, form: str, ranks: tuple[int, ...]
) -> None:
    lists = wrong(1, 2)
    told = [form.format(rank, *lists[rank]) for rank in ranks]
    finding = first_of(say(tmp_path, *told, *wait(*ranks)))

    assert (finding.name, finding.culprits.ranks) == ("split-mismatch", [])
    assert finding.details["pair"] == [1, 2]


def test_ranks_that_tell_one_list_only_are_compared(tmp_path: Path) -> None:
    lists = wrong(0, 2)
    told = [
        f"[rank0]: layer 3 send_splits={lists[0][0]}",
        f"[rank1]: layer 3 send_splits={lists[1][0]} recv_splits={lists[1][1]}",
        f"[rank2]: layer 3 recv_splits={lists[2][1]}",
    ]
    finding = first_of(say(tmp_path, *told, *wait(0, 2)))

    assert finding.details["pair"] == [0, 2]


MEGATRON, SEAT, SPAN = FORMS["megatron"], SEATS[0], SPANS[0]
OTHERS = {rank: [lists[0][::-1], lists[1]] for rank, lists in uneven().items()}


@pytest.mark.parametrize(
    ("form", "lists", "ranks"),
    [
        (SEAT, uneven(), (0, 1, 2, 3)),
        (SEAT, ODD, (0, 1, 2, 3)),
        (SEAT, OTHERS, (0, 1, 2, 3)),
        (SEAT, wrong(2, 2), (0, 1, 2, 3)),
        (SEAT, wrong(), (0, 2, 3)),
        (SEAT, wrong(), (0, 1, 2, 3, 0, 1, 2, 3)),
        (SEAT.replace("layer 3 ", ""), wrong(), (0, 1, 2, 3)),
        (MEGATRON, uneven(), (0, 1, 2)),
        (MEGATRON, wrong(1, 2), (1, 2)),
        (MEGATRON, wrong(1, 2), (1, 2, 3)),
        (MEGATRON, OTHERS, (0, 1, 2)),
        (SPAN, uneven(), (1, 2)),
        (SPAN, OTHERS, (1, 2)),
        (SPAN.replace("0..3", "4..7"), wrong(1, 2), (1, 2)),
        (SPAN.replace("0..3", "0..7"), wrong(1, 2), (1, 2)),
    ],
)
def test_lists_that_no_others_link_are_not_compared(
    tmp_path: Path, form: str, lists: Lists, ranks: tuple[int, ...]
) -> None:
    told = [form.format(rank, *lists[rank]) for rank in ranks]

    assert not list_splits(say(tmp_path, *told, *wait(0, 1)))


def test_part_of_a_group_needs_one_wait_for_one_call(tmp_path: Path) -> None:
    told = [SPAN.format(rank, *wrong(1, 2)[rank]) for rank in (1, 2)]

    assert not list_splits(say(tmp_path, *told))
    assert not list_splits(say(tmp_path, *told, *wait(1), *wait(2, seq=778)))
    later = told[1].replace("layer 3", "layer 4")
    assert not list_splits(say(tmp_path, told[0], later, *wait(1, 2)))
