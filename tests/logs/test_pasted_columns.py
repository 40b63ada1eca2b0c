"""Ops of all ranks side by side, as tools print them: who left a call out, or made one more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

# What a rank calls: the size, the function and its line.
LOSS, COUNTS, EXTRA = (1, "loss_avg", 96), (2, "token_counts", 101), (5, "log_extra", 120)
Call = tuple[int, str, int]
FIRST = 1441


def show_short(call: Call, seq: int, state: str) -> str:
    return f"all_reduce(s=[[{call[0]}]], p=0 seq={seq}) {state}"


def show_verbose(call: Call, seq: int, state: str) -> str:
    return (
        f"all_reduce(timestamp_created=17000{seq}, input_sizes=[[{call[0]}]], "
        f"output_sizes=[[{call[0]}]], input_dtypes=['Float'], output_dtypes=['Float'], "
        f"collective_seq_id | p2p_seq_id={seq}, pg_name=0, pg_description=default_pg, "
        f"pg_size=4, stack_id=3, state={state})"
    )


def show_plain(call: Call, _seq: int, state: str) -> str:
    return f"all_reduce(input_sizes=[[{call[0]}]], state={state})"


def show_nccl(call: Call, seq: int, state: str) -> str:
    return f"nccl:all_reduce(sizes=[[{call[0]}]], pg_name=0, #{seq}, state={state})"


FORMS: dict[str, Callable[[Call, int, str], str]] = {
    "short": show_short,
    "verbose": show_verbose,
    "plain": show_plain,
    "nccl": show_nccl,
}


def lay_out(
    ranks: Sequence[Sequence[Call]],
    form: str,
    *,
    mark: str = "  ",
    sites: bool = True,
    pending: bool = True,
) -> list[str]:
    """Write the table of the calls of each rank; the last one of each is not over."""
    show = FORMS[form]
    cells = [
        [
            show(call, FIRST + at, "started" if pending and at == len(calls) - 1 else "completed")
            for at, call in enumerate(calls)
        ]
        for calls in ranks
    ]
    width = max(len(cell) for column in cells for cell in column)
    edge = "| " if "|" in mark else ""

    def join(texts: Sequence[str]) -> str:
        return edge + mark.join(text.ljust(width) for text in texts) + edge.rstrip()

    lines = [join([f"Rank {rank}" for rank in range(len(ranks))]), join(["-" * width] * len(ranks))]
    for at in range(max(map(len, ranks))):
        lines.append(join([column[at] if at < len(column) else "" for column in cells]))
        if sites:
            told = [calls[at] if at < len(calls) else None for calls in ranks]
            lines.append(join([f"  {one[1]} at loop.py:{one[2]}" if one else "" for one in told]))
    return ["$ torchfrtrace --prefix rank_ -j /scratch/fr", "loaded 4 files in 0.0381s", *lines, ""]


def judge(report: Report) -> tuple[str, list[int]]:
    return first_of(report).name, first_of(report).culprits.ranks


USUAL = [LOSS, COUNTS, LOSS, COUNTS]
AHEAD = [LOSS, COUNTS, LOSS, LOSS]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["  ", " | "])
@pytest.mark.parametrize("sites", [True, False])
def test_rank_that_is_one_call_ahead_left_one_out(
    tmp_path: Path, form: str, mark: str, *, sites: bool
) -> None:
    lines = lay_out([USUAL, USUAL, AHEAD, USUAL], form, mark=mark, sites=sites)
    report = say(tmp_path, *lines)

    assert judge(report) == ("skipped-collective", [2])
    assert first_of(report).victims.ranks == "0-1,3"
    assert not sites or first_of(report).where[0].line == 101


def test_source_beside_is_quoted(tmp_path: Path) -> None:
    source = ["$ sed -n 95,101p loop.py", "        x = 1", "        loss_avg(loss)"]
    source += ["        labels = batch", "        n = int(labels)", "        if n == 0:"]
    source += ["            continue", "        token_counts(n)", "$ ls"]
    report = say(tmp_path, *lay_out([USUAL, AHEAD, USUAL], "short"), *source)

    assert judge(report) == ("skipped-collective", [1])
    assert first_of(report).details["code"] == {"loop.py:101": "token_counts(n)"}


def test_rank_with_a_call_that_nobody_made_before_made_one_more(tmp_path: Path) -> None:
    more = [LOSS, COUNTS, LOSS, EXTRA]
    lines = lay_out([more, USUAL, USUAL, USUAL], "short")

    assert judge(say(tmp_path, *lines)) == ("extra-collective", [0])


def test_one_of_two_that_is_ahead_is_told_by_what_came_before(tmp_path: Path) -> None:
    assert judge(say(tmp_path, *lay_out([USUAL, AHEAD], "short"))) == ("skipped-collective", [1])


def test_other_size_at_one_place_is_told_of_its_rank(tmp_path: Path) -> None:
    short = [*USUAL[:-1], (7, *COUNTS[1:])]
    lines = lay_out([USUAL, USUAL, short, USUAL], "short")

    assert judge(say(tmp_path, *lines)) == ("shape-mismatch", [2])


SILENT = {
    "all alike": [USUAL] * 4,
    "one op of each": [[LOSS], [LOSS], [COUNTS]],
}


@pytest.mark.parametrize("name", SILENT)
def test_who_is_wrong_is_not_told(tmp_path: Path, name: str) -> None:
    report = say(tmp_path, *lay_out(SILENT[name], "plain"))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_rows_that_begin_with_other_calls_are_not_compared(tmp_path: Path) -> None:
    later = [COUNTS, LOSS, COUNTS, LOSS]
    lines = lay_out([USUAL, USUAL, later, USUAL], "plain")
    report = say(tmp_path, *lines)

    assert "skipped-collective" not in {one.name for one in report.findings}


def test_calls_that_are_all_over_blame_nobody(tmp_path: Path) -> None:
    lines = lay_out([USUAL, USUAL, AHEAD, USUAL], "short", pending=False)

    assert not {rank for one in say(tmp_path, *lines).findings for rank in one.culprits.ranks}


ROWS = {
    "bars": (
        "rank | pg | seq | op | input_sizes | state | frame",
        "{0} | 0 | {2} | all_reduce | [[{1[0]}]] | {3} | {1[1]} loop.py:{1[2]}",
    ),
    "printed": ("", "{0} {2} nccl:all_reduce [[{1[0]}]] {3} loop.py {1[2]}"),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_for_each_op_of_a_rank_is_compared(tmp_path: Path, name: str) -> None:
    head, row = ROWS[name]
    lines = [head]
    for rank in range(4):
        for at, call in enumerate(AHEAD if rank == 2 else USUAL):
            state = "started" if at == len(USUAL) - 1 else "completed"
            lines.append(row.format(rank, call, FIRST + at, state))

    assert judge(say(tmp_path, *lines)) == ("skipped-collective", [2])
