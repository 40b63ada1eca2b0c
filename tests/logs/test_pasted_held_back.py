"""Entries of flight recorders, some of a rank in a row: one rank is in an op that others ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WIDE = "rank {0}  pg 0:default_pg  {1} nccl:{2} {3}    {4} nccl:{5} {6}"
NARROW = "[rank {0}] group=3, {1}: nccl:{2} ({3}); {4}: nccl:{5} ({6})"


def rows(form: str, odd: int, op: str = "all_reduce", later: str = "started") -> list[str]:
    """Print the last two entries of each rank; that of one is not over."""
    told = ["dumps, by my script:"]
    for rank in range(6):
        states = ("started", "scheduled") if rank == odd else ("completed", later)
        told.append(form.format(rank, 702, op, states[0], 703, "_all_gather_base", states[1]))
    return told


@pytest.mark.parametrize("form", [WIDE, NARROW.replace("[rank {0}]", "rank {0}")])
@pytest.mark.parametrize("op", ["all_reduce", "_reduce_scatter_base", "barrier"])
def test_rank_whose_op_is_over_for_all_others_is_named(tmp_path: Path, form: str, op: str) -> None:
    found = first_of(say(tmp_path, *rows(form, odd=4, op=op)))

    assert (found.code, found.culprits.ranks) == ("H123", [4])
    assert found.victims.ranks == "0-3,5"


def test_columns_of_a_table_tell_the_same(tmp_path: Path) -> None:
    lines = ["rank,pg_name,collective_seq_id,profiling_name,state"]
    for rank in range(4):
        states = ("started", "scheduled") if rank == 1 else ("completed", "started")
        lines.append(f"{rank},dp,90,nccl:all_reduce,{states[0]}")
        lines.append(f"{rank},dp,91,nccl:all_reduce,{states[1]}")
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks) == ("H123", [1])


@pytest.mark.parametrize(
    "lines",
    [
        # some are past a broadcast before others have it
        rows(WIDE, odd=4, op="broadcast"),
        # all is over for the others, which may be dumped later
        rows(WIDE, odd=4, later="completed"),
        # nobody is behind
        rows(WIDE, odd=-1),
        # too few to tell whose it is
        rows(WIDE, odd=1)[:3],
    ],
    ids=["broadcast", "over", "alike", "two"],
)
def test_device_is_not_blamed_where_others_may_be_past_the_op(
    tmp_path: Path, lines: list[str]
) -> None:
    assert not any(one.code == "H123" for one in say(tmp_path, *lines).findings)


def test_words_between_entries_are_no_row(tmp_path: Path) -> None:
    report = say(tmp_path, "rank 2  pg 0  7 images nccl:all_reduce started", "rank 3 is next")

    assert not report.findings or not report.findings[0].culprits.ranks


# Heads that people's scripts print, with columns in any order.
HEADS = {
    "blanks": ("rank  seq   op           size     state", "{0}     {1}   {2}   4096   {3}"),
    "one blank": ("rank seq op state", "{0} {1} {2} {3}"),
    "tabs": ("seq\trank\top\tstate", "{1}\t{0}\t{2}\t{3}"),
    "commas": ("rank, seq, op, state", "{0}, {1}, {2}, {3}"),
    "state before": ("state   rank   seq   op", "{3}   {0}   {1}   {2}"),
    "operation": ("rank seq state operation", "{0} {1} {3} {2}"),
}


def table(form: str, odd: int, prefix: str = "", states: tuple[str, str] = ("", "")) -> list[str]:
    """Print a table of the last two entries of each of five ranks, the last ones as `same`."""
    head, row = HEADS[form]
    lines = ["last entries of the flight recorder:", head]
    for rank in range(3):
        first, second = ("started", "scheduled") if rank == odd else ("completed", "started")
        lines.append(row.format(rank, 60, "all_reduce", states[0] or first))
        lines.append(row.format(rank, 61, "all_reduce", states[1] or second))
    return [f"{prefix}{line}" for line in (*lines, "... (3-4 same as rank 2)")]


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_table_of_other_columns_tells_the_same(tmp_path: Path, form: str, prefix: str) -> None:
    found = first_of(say(tmp_path, *table(form, 1, prefix)))

    assert (found.code, found.culprits.ranks) == ("H123", [1])
    assert found.victims.ranks == "0,2-4"


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize(
    "states", [("completed", "completed"), ("completed", "started"), ("queued", "running")]
)
def test_table_in_which_all_are_alike_blames_nobody(
    tmp_path: Path, form: str, states: tuple[str, str]
) -> None:
    report = say(tmp_path, *table(form, 1, states=states))

    assert not any(one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    "head", ["rank  step  op  state", "worker  seq  op  state", "rank  seq  op", "seq op and state"]
)
def test_table_of_something_else_is_no_recorder(tmp_path: Path, head: str) -> None:
    lines = [head, *table("one blank", 1)[2:]]

    assert not any(one.culprits.ranks for one in say(tmp_path, *lines).findings)


COUNTED = {
    "blanks": (
        "rank  seq   op              state     last_enqueued  last_completed",
        "{0}     {1}   nccl:{2}   started   90   {3}",
    ),
    "bars": (
        "| rank | op | seq | state | last_enq | last_done |",
        "| {0} | {2} | {1} | started | 90 | {3} |",
    ),
}


def count(form: str, *rows: tuple[int, str, int], prefix: str = "") -> list[str]:
    """Print the oldest op that is not over of each rank, and the last one that is."""
    head, row = COUNTED[form]
    told = [row.format(rank, seq, op, done) for rank, (seq, op, done) in enumerate(rows)]
    return [f"{prefix}{line}" for line in (head, *told)]


AHEAD = (81, "all_reduce", 80)


@pytest.mark.parametrize("form", COUNTED)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_counters_tell_which_op_is_over_for_others(tmp_path: Path, form: str, prefix: str) -> None:
    lines = count(form, AHEAD, (80, "all_gather", 79), AHEAD, prefix=prefix)
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks) == ("H123", [1])
    assert found.victims.ranks == "0,2"


@pytest.mark.parametrize("form", COUNTED)
@pytest.mark.parametrize(
    "rows",
    {
        "a root": (AHEAD, (80, "broadcast", 79), AHEAD),
        "not over": ((81, "all_reduce", 79), (80, "all_gather", 79), (81, "all_reduce", 79)),
        "over for all": (AHEAD, (80, "all_gather", 80), AHEAD),
        "alike": (AHEAD, AHEAD, AHEAD),
        "one peer": (AHEAD, (80, "all_gather", 79)),
    }.values(),
)
def test_counters_that_tell_of_no_device(
    tmp_path: Path, form: str, rows: tuple[tuple[int, str, int], ...]
) -> None:
    assert all(one.code != "H123" for one in say(tmp_path, *count(form, *rows)).findings)


# The oldest entry of each rank that is not over, and the number of the last one that is.
OLDEST = {
    "blanks": (
        "rank   seq   op   state   last_enqueued   last_completed",
        "{0}      {1}   nccl:{2}    {3}     {4}      {5}",
    ),
    "bars": (
        "| rank | seq_id | profiling_name | state | last_enqueued | last_completed |",
        "| {0} | {1} | nccl:{2} | {3} | {4} | {5} |",
    ),
    "commas": (
        "rank,pg,coll_seq,op,state,enqueued,completed_seq",
        "{0},0 (default_pg),{1},nccl:{2},{3},{4},{5}",
    ),
}


def oldest(form: str, *, op: str = "all_gather", later: str = "started", done: int = 812) -> str:
    head, row = OLDEST[form]
    ranks = {0: 812, 3: 811, 5: 812, 6: 812}
    told = [
        row.format(rank, over + 1, op, later if over > 811 else "started", 826, done)
        if rank != 3
        else row.format(rank, 812, op, "started", 826, 811)
        for rank, over in ranks.items()
    ]
    return "\n".join([head, *told])


@pytest.mark.parametrize("more", ["", "all other ranks like 0", "\n6 more like these"])
@pytest.mark.parametrize("form", OLDEST)
def test_numbers_of_the_last_op_that_is_over_tell_the_same(
    tmp_path: Path, form: str, more: str
) -> None:
    found = first_of(say(tmp_path, "of the dumps:", oldest(form), more))

    assert (found.code, found.culprits.ranks) == ("H123", [3])
    assert found.victims.ranks == "0,5-6"


@pytest.mark.parametrize(
    "text",
    [
        oldest("blanks", op="broadcast"),
        oldest("blanks", later="completed"),
        oldest("blanks", done=811),
        oldest("blanks").replace(" 812\n", " -\n"),
        "\n".join(line.rpartition(" ")[0] for line in oldest("blanks").split("\n")),
    ],
    ids=["broadcast", "over", "not over", "dash", "no such column"],
)
def test_device_is_not_blamed_where_numbers_do_not_tell_so(tmp_path: Path, text: str) -> None:
    assert not any(one.code == "H123" for one in say(tmp_path, text).findings)
