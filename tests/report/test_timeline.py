"""Timelines in text, Markdown and HTML: side by side when there is room, below each other else."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import samples

from whystuck.report.html import render_html
from whystuck.report.markdown import render_markdown
from whystuck.report.redact import redact_report
from whystuck.report.text import render_text
from whystuck.report.timeline import lay_out_timeline

UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\udc80-\udcff]")


def text_of(width: int = 95) -> str:
    return render_text(samples.stuck(), color=False, width=width, ops=True)


def test_classes_are_side_by_side() -> None:
    lines = text_of(110).splitlines()
    start = lines.index("group 0 (default_pg), ranks 0-3: 2 of 41 ops")

    assert [re.split(" {2,}", line) for line in lines[start + 1 : start + 4]] == [
        ["", "seq", "op", "sizes", "ranks 1-3", "rank 0*"],
        ["", "40", "all_reduce", "[41] Float", *["done train.py:12 train_step"] * 2],
        ["->", "41", "all_reduce", "[41] Float", "started train.py:12 train_step",
         "pending barrier train.py:5 train_step"],
    ]  # fmt: skip


def test_functions_go_first_when_room_is_short() -> None:
    assert "->  41  all_reduce  [41] Float  started train.py:12  pending barrier train.py:5" in (
        text_of(80)
    )


def test_narrow_text_has_a_line_for_each_class() -> None:
    lines = text_of(60).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("->"))

    assert lines[start].split()[1:6] == ["41", "all_reduce", "[41]", "Float", "1-3"]
    assert lines[start + 1].split()[:4] == ["barrier", "[41]", "Float", "0*"]


@pytest.mark.parametrize("width", [60, 80, 95, 120])
@pytest.mark.parametrize("name", ["stuck", "hostile"])
def test_lines_fit(name: str, width: int) -> None:
    report = msgspec.structs.replace(samples.ALL[name](), findings=[], gaps=[], stacks=[])
    text = render_text(report, color=False, width=width, ops=True)
    lines = text.partition("group 0")[2].splitlines()[1:]

    assert max(map(len, lines)) <= width
    assert not UNSAFE.search(text)


def test_text_without_ops_leaves_the_timeline_out() -> None:
    assert "group 0 (default_pg)" not in render_text(samples.stuck(), color=False, width=95)


def test_notes_tell_of_other_groups_and_of_mismatches() -> None:
    table = lay_out_timeline(samples.timeline())

    assert table.notes == (
        "1 more group is alike (7): ranks 4-7",
        "1 of 41 ops does not match: 41",
    )
    assert table.legend == "-> the ranks part here"


def test_many_columns_become_rows() -> None:
    wide = msgspec.structs.replace(samples.timeline(), columns=["0", "1", "2", "3", "4"])

    assert lay_out_timeline(wide).header[-1] == "called at"
    assert lay_out_timeline(samples.timeline()).header[-2:] == ("ranks 1-3", "rank 0")


def test_markdown_has_a_table_that_text_cannot_break() -> None:
    page = render_markdown(samples.hostile())
    rows = [line for line in page.splitlines() if line.startswith("| ")]

    assert not any("<script" in row for row in rows if "Float" in row)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows if "seq" in row}) == 1
    assert "**group 0 (default_pg), ranks 0-3: 2 of 41 ops**" in render_markdown(samples.stuck())


def test_page_has_a_table_and_no_hostile_element() -> None:
    page = render_html(samples.hostile())

    assert page.count('<table class="ops">') == 1
    assert "<img" not in page
    assert '<tr class="divergence">' in page


def test_redaction_reaches_call_sites() -> None:
    [shown] = redact_report(samples.stuck()).timeline

    assert {site.file for op in shown.ops for part in op.classes for site in part.sites} == {
        "…/train.py"
    }


def test_one_op_of_many_sets_of_ranks_stays_short() -> None:
    op = samples.timeline().ops[1]
    parts = [msgspec.structs.replace(op.classes[0], ranks=str(rank)) for rank in range(1000)]
    wide = msgspec.structs.replace(
        samples.timeline(),
        columns=[part.ranks for part in parts],
        ops=[msgspec.structs.replace(op, classes=parts)],
    )
    table = lay_out_timeline(wide, 95, frozenset({777}))
    shown = [row.cells[3] for row in table.rows]

    assert shown == ["0", "1", "2", "3", "4", "5", "777*", ""]
    assert table.rows[-1].cells[1] == "993 more sets of ranks"
    assert table.legend == "-> the ranks part here · * named as the cause"
