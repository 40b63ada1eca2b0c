"""What stands before lines: the forms that may begin so tell the same as all of them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from whystuck.parse.logs.lines.line_forms import FORMS, PREFIX, STARTS, match_prefix

TEXTS = sorted((Path(__file__).parents[2] / "logs").glob("*/*/*.*"))
# The beginnings of forms, and what joins them.
PIECES = st.sampled_from(
    [
        *"[](){}|<>:;,./~@+=-_# \t\u00b2\u0663\u00e9rRaAEW0159",
        "2026-03-04T10:12:32.5Z",
        "2026-03-04T10:12:32.500000Z out ",
        "Mar  4 10:12:32 2026",
        "Tue Mar  4 10:12:32 2026] ",
        "03/04/2026 10:12:32",
        "[rank3]: ",
        "node3 [rank12]: ",
        "rank 3: ",
        "rank3[41][n1]: ",
        "| rank=3 | ",
        "| INFO | ",
        "node1:22:33 [0] ",
        "(Worker pid=4, ip=10.0.0.1) ",
        "(PID:4, Device:0, RankID:3) ",
        "HCCL(41,python):",
        "[1,3]<stderr>:",
        "    3: ",
        "kern  :warn  : ",
        "4,812,3812345,-;",
        "[   12.345678] ",
        "n1 kernel: [ 12.345678] ",
        "[W1112 08:40:10.221004455 a.cpp:6] ",
        "job.D0 [stderr] ",
        "logs/rank_3.err:12:",
        "12:[I",
    ]
)


def outline(text: str) -> tuple[str | None, int, dict[str, str | None]]:
    match = match_prefix(text)
    return (match.lastgroup, match.end(), match.groupdict()) if match else (None, 0, {})


def outline_plainly(text: str) -> tuple[str | None, int, dict[str, str | None]]:
    match = PREFIX.match(text)
    return (match.lastgroup, match.end(), match.groupdict()) if match else (None, 0, {})


def is_same(text: str) -> bool:
    name, end, groups = outline(text)
    # A pattern that has fewer forms has fewer groups, too.
    told = {key: value for key, value in outline_plainly(text)[2].items() if value is not None}
    mine = {key: value for key, value in groups.items() if value is not None}
    return (name, end, mine) == (*outline_plainly(text)[:2], told)


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES, max_size=5).map("".join))
@example("")
@example("        [rank3]: deep")
def test_forms_that_may_begin_so_tell_the_same_as_all(text: str) -> None:
    assert is_same(text)


def test_lines_of_the_corpora_are_taken_apart_alike() -> None:
    lines = {line for path in TEXTS for line in path.read_text(errors="replace").splitlines()}

    assert [line for line in lines if not (is_same(line) and is_same(line[30:]))] == []


def test_every_form_may_begin_with_something() -> None:
    assert {name for names in STARTS.values() for name in names.split()} == set(FORMS)
