"""Executed lines in a report: loops folded, the culprits first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.diagnose.summaries import executed_lines as executed
from whystuck.diagnose.summaries.executed_lines import fold_lines, list_executed
from whystuck.evidence.finding import Confidence, Culprits, Finding, Report, Severity, Verdict
from whystuck.evidence.ops.executed_lines import ExecutedLine, ExecutedLines, ExecutedThread
from whystuck.report import markdown, text


def _lines(*numbers: int) -> tuple[ExecutedLine, ...]:
    return tuple(ExecutedLine("/home/me/train.py", number, "main") for number in numbers)


def _folded(*numbers: int) -> list[tuple[int, list[int]]]:
    return [(run.times, [site.line for site in run.lines]) for run in fold_lines(_lines(*numbers))]


def test_loop_is_folded_from_its_head_to_where_it_stopped() -> None:
    assert _folded(1, *[2, 3, 4] * 5, 2, 3, 9) == [(1, [1]), (5, [2, 3, 4]), (1, [2, 3, 9])]


def test_lines_without_a_loop_stay_as_they_are() -> None:
    assert _folded(1, 2, 3) == [(1, [1, 2, 3])]
    assert _folded() == []


def test_one_line_again_and_again_is_one_run() -> None:
    assert _folded(7, *[8] * 100) == [(1, [7]), (100, [8])]


@given(st.lists(st.integers(1, 4), max_size=60))
def test_folding_loses_nothing(numbers: list[int]) -> None:
    unfolded = [line for times, lines in _folded(*numbers) for line in lines * times]
    assert unfolded == numbers


def _find_loop(lines: list[int], end: int) -> tuple[int, int]:
    """Look for a loop by comparing bodies one by one."""
    best = 1, 1
    for period in range(1, min(64, end // 2) + 1):
        body = lines[end - period : end]
        times = 1
        while end >= period * (times + 1) and (
            lines[end - period * (times + 1) : end - period * times] == body
        ):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times
    return best


@given(st.lists(st.integers(1, 3), max_size=80))
def test_loops_are_those_that_comparing_bodies_finds(numbers: list[int]) -> None:
    periods, rounds = executed._find_loops(_lines(*numbers))

    found = list(zip(periods, rounds, strict=True))
    assert found == [_find_loop(numbers, end) for end in range(1, len(numbers) + 1)]


def test_of_many_lines_the_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _lines(*range(1000), *[5, 6] * 50, *range(100))
    assert [(run.times, len(run.lines)) for run in fold_lines(lines, 2)] == [(50, 2), (1, 100)]
    assert [(run.times, len(run.lines)) for run in fold_lines(lines, max_lines=40)] == [(1, 40)]

    monkeypatch.setattr(executed, "_MAX_LINES", 105)
    shown = list_executed([_recorded(0), _recorded(1)], {1})
    assert [len(path.runs) for path in shown] == [2, 1, 2, 1]
    threads = (ExecutedThread("a", 1, is_main=True, count=2000, lines=lines),) * 3
    shown = list_executed([ExecutedLines(0, "settrace", 9, threads=threads)], ())
    assert [sum(len(run.lines) for run in path.runs) for path in shown] == [105, 0, 0]


def _recorded(rank: int) -> ExecutedLines:
    threads = (
        ExecutedThread("feeder", 11, is_main=False, count=1, lines=_lines(1)),
        ExecutedThread("MainThread", 10, is_main=True, count=2000, lines=_lines(*[5, 6] * 9, 7)),
    )
    return ExecutedLines(rank, "settrace", 100, 500.0, 200.0, 10**9, threads=threads)


def test_main_threads_of_the_culprits_come_first_with_what_they_cost() -> None:
    paths = list_executed([_recorded(0), _recorded(1)], {1}, until_ns=3 * 10**9)
    assert [(path.rank, path.thread) for path in paths] == [
        (1, "MainThread"), (1, "feeder"), (0, "MainThread"), (0, "feeder"),
    ]  # fmt: skip
    assert paths[0].share == 2000 * 500 / 2e9


def test_share_is_not_known_without_a_time() -> None:
    assert [path.share for path in list_executed([_recorded(0)], ())] == [None, None]


def _report() -> Report:
    finding = Finding(
        code="H101",
        name="rank-never-joined",
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        summary="rank 1 sleeps",
        culprits=Culprits(ranks=[1]),
    )
    executed = list_executed([_recorded(0), _recorded(1)], {1}, until_ns=3 * 10**9)
    return Report(verdict=Verdict.STUCK, findings=[finding], executed=executed)


TITLE = "last lines that rank 1 executed (MainThread; 2000 in all; each costs 0.5 µs, 0.1%"


def test_text_and_markdown_show_the_path_of_the_culprit() -> None:
    shown = text.render_text(_report(), color=False, width=100)
    assert TITLE in shown
    assert "  9 x train.py:5,6 in main\n  train.py:7 in main\n" in shown
    assert "rank 0 executed" not in shown
    written = markdown.render_markdown(_report())
    assert TITLE in written
    assert "- `9 x train.py:5,6 in main`\n" in written


def test_redacted_text_has_no_folder() -> None:
    assert "/home/me" not in text.render_text(_report(), color=False, width=100, redact=True)
