"""What watchdogs print of two versions becomes the ops of groups: whole, cut, mixed, prefixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.diagnose.logs.told_ops import ToldGroup, list_told_groups, make_told_table
from whystuck.diagnose.logs.view import LogView
from whystuck.pipeline import read_paths

_WORK = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}{sizes}, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
_SIZES = ", NumelIn=64, NumelOut=64"
# As torch 2.2 and torch 2.7 print them.
OLD = "[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}] " + _WORK
OLD_STATUS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1182] [Rank {rank}] Timeout at NCCL work: {seq}, last "
    "enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
)
NEW = "[rank{rank}]:[E1120 10:00:00.123456789 ProcessGroupNCCL.cpp:685] [Rank {rank}] " + _WORK
NEW_STATUS = (
    "[rank{rank}]:[E1120 10:00:00.123556789 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status:"
    " last enqueued work: {enqueued}, last completed work: {completed}"
)
VERSIONS = pytest.mark.parametrize(
    ("work", "status"), [(OLD, OLD_STATUS), (NEW, NEW_STATUS)], ids=["2.2", "2.7"]
)


def work(form: str, rank: int, seq: int = 411, op: str = "ALLREDUCE", sizes: str = _SIZES) -> str:
    return form.format(rank=rank, seq=seq, op=op, sizes=sizes)


def tell(form: str, rank: int, seq: int, enqueued: int, completed: int) -> str:
    return form.format(rank=rank, seq=seq, enqueued=enqueued, completed=completed)


def list_groups(folder: Path, *lines: str) -> list[ToldGroup]:
    (folder / "a.log").write_text("\n".join(lines) + "\n")
    return list_told_groups(LogView(read_paths([folder])))


@VERSIONS
def test_op_has_the_counters_of_its_rank(tmp_path: Path, work: str, status: str) -> None:
    lines = [work.format(rank=rank, seq=411, op="ALLREDUCE", sizes=_SIZES) for rank in (0, 1)] + [
        tell(status, rank, 411, 419, 410) for rank in (0, 1)
    ]

    (group,) = list_groups(tmp_path, *lines)

    assert sorted(group.ops) == [0, 1]
    op = group.ops[1]
    assert (op.op, op.seq, op.sizes, op.limit_ms) == ("all_reduce", 411, ((64,), (64,)), 600000)
    assert (op.enqueued, op.completed) == (419, 410)
    assert group.is_sure


@VERSIONS
def test_table_holds_what_is_before_an_op_and_behind_it(
    tmp_path: Path, work: str, status: str
) -> None:
    lines = [work.format(rank=0, seq=411, op="ALLREDUCE", sizes=_SIZES)]
    (group,) = list_groups(tmp_path, *lines, tell(status, 0, 411, 413, 410))

    table = make_told_table(group)

    assert table.seq.tolist() == [410, 411, 412, 413]
    assert table.done.tolist() == [True, False, False, False]


def test_sizes_that_are_not_printed_or_not_there_are_not_known(tmp_path: Path) -> None:
    none = ", NumelIn=18446744073709551615, NumelOut=64"
    (group,) = list_groups(tmp_path, work(NEW, 0, sizes=""), work(NEW, 1, sizes=none))

    assert group.ops[0].sizes == ((), ())
    assert group.ops[1].sizes == ((), (64,))


def test_first_op_of_a_rank_counts(tmp_path: Path) -> None:
    (group,) = list_groups(tmp_path, work(NEW, 0, seq=413), work(NEW, 0, seq=411))

    assert group.ops[0].seq == 411


@pytest.mark.parametrize("before", ["7: ", "2026-11-23T22:00:01.000001Z stderr F ", "n1 | "])
def test_prefixes_of_launchers_do_not_matter(tmp_path: Path, before: str) -> None:
    lines = [before + work(NEW, rank) for rank in (0, 1)]

    (group,) = list_groups(tmp_path, *lines)

    assert sorted(group.ops) == [0, 1]


def test_cut_line_tells_nothing_and_the_others_do(tmp_path: Path) -> None:
    lines = [work(NEW, 0)[:150], "[rank0]: step 3 loss 2.1", work(NEW, 1)]

    (group,) = list_groups(tmp_path, *lines)

    assert sorted(group.ops) == [1]


def test_groups_are_told_apart_by_their_names(tmp_path: Path) -> None:
    def name(line: str, group: str) -> str:
        return line.replace("[PG ID 0 PG GUID 0(default_pg)", f"[PG ID 2 PG GUID {group}(tp)")

    lines = [work(NEW, 0), name(tell(NEW_STATUS, 0, 411, 411, 410), "5")]
    lines += [work(NEW, 2, 300), name(tell(NEW_STATUS, 2, 300, 300, 299), "6")]

    groups = list_groups(tmp_path, *lines)

    assert [(group.name, sorted(group.ops)) for group in groups] == [
        ("5 (tp)", [0]),
        ("6 (tp)", [2]),
    ]


@pytest.mark.parametrize(
    ("seq", "members", "is_sure"),
    [
        (411, (0, 1, 5), True),
        (411, (0, 0, 1), False),
        (55, (0, 1, 2), True),
        (55, (0, 1, 0), False),
        (3, (0, 1, 2), False),
    ],
    ids=[
        "late",
        "late but of two groups",
        "numbers of one group",
        "numbers of two groups",
        "early",
    ],
)
def test_numbers_are_of_one_group_where_that_is_sure(
    tmp_path: Path, seq: int, members: tuple[int, ...], *, is_sure: bool
) -> None:
    lines = [
        work(NEW, rank, seq).replace(f"[Rank {rank}]", f"[Rank {member}]")
        for rank, member in zip((4, 5, 6), members, strict=True)
    ]

    (group,) = list_groups(tmp_path, *lines)

    assert group.is_sure is is_sure


def test_members_of_a_group_are_told_where_their_ranks_are_not_known(tmp_path: Path) -> None:
    lines = [work(NEW, rank).removeprefix(f"[rank{rank}]:") for rank in (0, 1)]
    status = tell(NEW_STATUS, 1, 411, 411, 410).removeprefix("[rank1]:")

    (group,) = list_groups(tmp_path, *lines, status.replace("0(default_pg)", "7(tp)"))

    assert group.is_of_members
    assert sorted(group.ops) == [0, 1]


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: Watchdog caught 3 failures so far",
        "[rank0]: INFO last enqueued work: 12, last completed work: 11",
        'print("WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1) ran for 3 milliseconds")',
    ],
)
def test_what_only_looks_like_it_is_no_op(tmp_path: Path, line: str) -> None:
    groups = list_groups(tmp_path, line)

    assert not any(group.ops or group.statuses for group in groups)
