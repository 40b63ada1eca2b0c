"""Prefixes of launchers that nobody knows, learned from the heads of lines behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Report
from whystuck.parse.logs.lines.labels import find_labels, find_own
from whystuck.parse.logs.lines.lines import LogLine, parse_line

# The prefix; the rank, host and local rank that it gives where nothing behind it does.
PREFIXES = [
    ("{0} | ", "rank", ""),
    ("<{0}> ", "rank", ""),
    ("r{0}> ", "rank", ""),
    ("[R{0}] ", "rank", ""),
    ("[{0}/8] ", "rank", ""),
    ("== {0} == ", "rank", ""),
    ("worker/{0}: ", "rank", ""),
    ("rank_{0}.log ... ", "rank", ""),
    ("2026/01/01 10:00:0{0} trainer[{0}]: ", "rank", ""),
    ("(gpu{0}) >> ", "local", ""),
    ("[xrun 10.42.0.{0}] ", "", "10.42.0.{0}"),
    ("12:00:01 svc=train host=h{0} ", "", "h{0}"),
    ("job=91 n{0} e> ", "", "n{0}"),
    ("pdsh c1{0}: ", "", "c1{0}"),
    ("job-17/attempt_2 ~ ", "", ""),
    ("xyz> ", "", ""),
    ("* ", "", ""),
    ("INFO:trainer:", "", ""),
]
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6171, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=1800000) ran for "
    "1800{0}20 milliseconds before timing out."
)
OWN = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 51, in main',
    "KeyError: 'x'",
]
LOST = [*OWN[:2], "RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:41122"]


def blame(report: Report) -> tuple[str, list[int]]:
    first = next(one for one in report.findings if one.code[0] != "E")
    return first.code, first.culprits.ranks


def parse_behind(lines: list[str], text: str) -> LogLine:
    data = [line.encode() for line in lines]
    labels = find_labels(data)
    return parse_line(text.encode(), labels, find_own(data, labels, {}))


@pytest.mark.parametrize("head", ["", "[rank{0}]:"], ids=["member", "rank"])
@pytest.mark.parametrize(("prefix", "_kind", "_node"), PREFIXES)
def test_rank_of_the_line_is_read_behind_any_prefix(
    tmp_path: Path, prefix: str, _kind: str, _node: str, head: str
) -> None:
    calls = ((0, "ALLREDUCE", 1), (2, "ALLREDUCE", 1), (5, "BROADCAST", 1322))
    lines = [prefix.format(one[0]) + head.format(one[0]) + WATCHDOG.format(*one) for one in calls]

    assert blame(say(tmp_path, *lines)) == ("H105", [5])


@pytest.mark.parametrize("head", ["", "[rank{0}]: "], ids=["bare", "rank"])
@pytest.mark.parametrize(("prefix", "kind", "node"), PREFIXES)
def test_tracebacks_are_read_behind_any_prefix(
    tmp_path: Path, prefix: str, kind: str, node: str, head: str
) -> None:
    lines = [
        prefix.format(rank) + head.format(rank) + text
        for own, lost in zip(OWN, LOST, strict=True)
        for rank, text in ((1, own), (0, lost), (2, lost))
    ]
    is_told = bool(head or kind or node)  # else the lines of all ranks are mixed
    if not is_told:
        lines = [prefix + text for text in (*OWN, *LOST)]

    report = say(tmp_path, *lines)
    code, ranks = blame(report)

    assert code == "C204"
    assert ranks == ([1] if head or kind else [])
    if node and not head:
        assert report.findings[0].culprits.nodes == [node.format(1)]


@pytest.mark.parametrize(("prefix", "kind", "node"), PREFIXES)
def test_what_a_prefix_tells_holds_for_lines_without_a_known_head(
    prefix: str, kind: str, node: str
) -> None:
    heads = [prefix.format(rank) + text for rank in range(3) for text in OWN]
    line = parse_behind(heads, prefix.format(2) + "step 771 n_pos=9")

    assert line.text == "step 771 n_pos=9"
    assert line.task == (2 if kind == "rank" else -1)
    assert line.local == (2 if kind == "local" else -1)
    assert line.node == node.format(2)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param(
            [
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "/j/e.py", line 5',
            ]
            * 2,
            "  | ValueError: first",
            id="group-of-exceptions",
        ),
        pytest.param(OWN * 2, '  File "/w/train.py", line 51, in main', id="no-prefix"),
        pytest.param(
            [
                f"we saw this on the {word} host of ours too: {OWN[0]}"
                for word in ("first", "other")
            ],
            "we saw this on the first host of ours too: yes",
            id="sentence",
        ),
        pytest.param([f"here> {OWN[0]}", "text"], "here> text", id="once"),
        pytest.param(
            ['msg="Traceback (most recent call last):"', 'msg="  File "x", line 1"'] * 2,
            'msg="text"',
            id="quoted",
        ),
    ],
)
def test_what_is_no_prefix_stays(lines: list[str], text: str) -> None:
    assert parse_behind(lines, text).text == text


def test_number_that_is_not_the_rank_behind_it_names_none(tmp_path: Path) -> None:
    heads = [f"{at}) [rank{rank}]: step 3" for at, rank in enumerate((4, 5, 6, 7))]

    assert parse_behind(heads, "2) text").task == -1
    assert parse_behind(heads, heads[2]).rank == 6


def test_counted_from_elsewhere_names_no_rank() -> None:
    heads = [f"{at} | {text}" for at in (310, 311, 312) for text in OWN]

    assert parse_behind(heads, "311 | text").task == -1
