"""The table of what was in the tensors of ops, from sums of ranks to every format."""

from __future__ import annotations

import json

import pytest

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence, Incident
from whystuck.evidence.ops.inspection import Inspection, Shares
from whystuck.parse.ops.inspection import parse_inspection
from whystuck.report.html import render_html
from whystuck.report.json import render_json
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text


def _shares(rank: int, **changes: int | str) -> Shares:
    values: dict[str, int | str] = {
        "side": "in", "name": "all_reduce", "group": "0", "dtype": "float16", "count": 1000,
        "counted": 1000, "nan": 0, "inf": 0, "subnormal": 10, "saturated": 0, "zero": 500,
    }  # fmt: skip
    return Shares(rank, **values | changes)  # type: ignore[arg-type] # spread from a dict


def _report(*shares: Shares) -> Report:
    seen = [Inspection(one.rank, "stats", shares=(one,)) for one in shares]
    return diagnose(Evidence(inspections=tuple(seen), incident=Incident(kind="inspection")))


def _table(report: Report) -> list[list[str]]:
    text = render_text(report, color=False, width=120)
    if "values in the tensors of ops:" not in text:
        return []
    lines = text.partition("values in the tensors of ops:\n")[2].split("\n\n")[0].splitlines()
    return [line.split() for line in lines]


def test_table_when_ranks_differ_then_shares_are_of_all_and_names_the_most() -> None:
    report = _report(_shares(0), _shares(1, inf=30), _shares(2, count=2000, counted=2000))
    header, row, note = _table(report)
    assert header[:5] == ["op", "group", "side", "type", "elements"]
    assert row == [
        "all_reduce", "0", "in", "float16", "4000", "0.00%", "0.75%", "0.83%", "41.67%",
        "rank", "1", "3.00%",
    ]  # fmt: skip
    assert note[:3] == ["shares", "of", "elements;"]


def test_table_when_only_nan_and_inf_were_counted_then_the_rest_is_unknown() -> None:
    finite = {"counted": 0, "subnormal": 0, "zero": 0}
    report = _report(_shares(0, nan=5, **finite), _shares(1, nan=5, **finite))
    assert _table(report)[1][5:] == ["0.50%", "0.00%", "-", "-", "-"]
    assert report.values[0].underflow is None


@pytest.mark.parametrize("shares", [[], [_shares(0, counted=0), _shares(1, counted=0)]])
def test_table_when_there_is_nothing_to_tell_then_is_left_out(shares: list[Shares]) -> None:
    assert _table(_report(*shares)) == []


def test_table_when_it_is_long_then_what_is_not_finite_comes_first() -> None:
    kinds = [_shares(0, group=f"g{number}", subnormal=number) for number in range(15)]
    report = _report(*kinds, _shares(0, group="bad", nan=1))
    lines = _table(report)
    assert [line[1] for line in lines[1:4]] == ["bad", "g14", "g13"]
    assert lines[-1][:2] == ["and", "6"]
    assert len(report.values) == 16


def test_formats_when_there_is_a_table_then_all_of_them_have_it() -> None:
    report = _report(_shares(0), _shares(1, inf=1))
    assert "| all_reduce | 0 | in | float16 | 2000 | 0.00% | 0.05% |" in render_markdown(report)
    assert "<td>float16</td>" in render_html(report)
    rows = json.loads(render_json(report))["values"]
    assert [(row["rank"], row["overflow"], row["zero"]) for row in rows] == [
        (1, 0.001, 0.5),
        (0, 0.0, 0.5),
    ]


def test_sums_when_inspection_was_on_twice_then_are_added_and_later_lines_replace() -> None:
    kind = {"kind": "shares", "side": "in", "name": "all_reduce", "group": "0", "dtype": "half"}
    lines = [
        {"kind": "start", "spec": "stats", "generation": 1},
        {**kind, "count": 10, "counted": 10, "zero": 1},
        {**kind, "count": 30, "counted": 20, "zero": 4},
        {"kind": "start", "spec": "finite", "generation": 2},
        {**kind, "count": 5, "inf": 2},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    made, gaps = parse_inspection(data, rank=3, artifact="x")
    assert gaps == ()
    (shares,) = made.shares
    assert (shares.rank, shares.count, shares.counted, shares.zero, shares.inf) == (3, 35, 20, 4, 2)
