"""How reports show where the time of traced steps went."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest
from tests.report.samples import HOSTILE

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.costs import TraceFacts
from whystuck.diagnose.traces.overview import describe_traces
from whystuck.evidence.finding import (
    Citation,
    Confidence,
    Coverage,
    Culprits,
    Finding,
    Gap,
    Report,
    Severity,
    Verdict,
)
from whystuck.evidence.table import Table, whole_column
from whystuck.evidence.traces.report import TraceBar, TraceOverview, TraceShare
from whystuck.evidence.traces.tables import RankHeader, TraceSummary
from whystuck.report.html import render_html
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text
from whystuck.report.traces import lay_out_traces

NAMES = ("compute", "exposed_comm", "data_wait")


def make_overview(ranks: int = 8, label: str = "") -> TraceOverview:
    """Ranks of which the last one waits for data."""
    bars = [
        TraceBar(label=label or str(rank), step_ms=100.0, shares=[0.6, 0.4, 0.0])
        for rank in range(ranks - 1)
    ]
    bars.append(TraceBar(label=label or str(ranks - 1), step_ms=101.0, shares=[0.6, 0.1, 0.3]))
    middle = (0.6, 0.4, 0.0)
    most = (0.6, 0.4, 0.3)
    return TraceOverview(
        ranks=f"0-{ranks - 1}",
        files=ranks,
        world_size=ranks,
        vendor="cuda",
        has_device=True,
        steps=3,
        first_step=7,
        last_step=9,
        step_ms=100.0,
        split=[
            TraceShare(name=name, share=share, most=worst, rank=ranks - 1)
            for name, share, worst in zip(NAMES, middle, most, strict=True)
        ],
        bars=bars,
    )


def make_report(summary: str = "rank 7 waits for data for 30% of the step") -> Report:
    finding = Finding(
        code="P501",
        name="input-bound",
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        summary=summary,
        culprits=Culprits(ranks=[7]),
        because=[Citation("the device waits for data for 30 of 100 ms", "step_time.csv", 3)],
        remedies=["raise `num_workers`", "keep the data on a local disk"],
        measures={"share_of_step": 0.04},
    )
    return Report(
        verdict=Verdict.SLOW,
        findings=[finding],
        coverage=Coverage(8, 8, ["traces"]),
        traces=make_overview(),
    )


def test_text_is_about_ten_lines() -> None:
    text = render_text(make_report(), color=False, width=95)

    assert text == (
        " read 8 of 8 ranks · traces of cuda devices, 3 steps (7-9) of 100 ms\n"
        " step: compute 60% · exposed communication 40% · waits for data 0% (rank 7 30%)\n"
        "\n"
        "warning[P501]: rank 7 waits for data for 30% of the step\n"
        "   = why: the device waits for data for 30 of 100 ms\n"
        "   = fix: raise `num_workers`\n"
        "hint: `whystuck explain P501` · `--tables DIR` writes all figures · `whystuck trace "
        "merge`\n"
        "      joins the traces for Perfetto · `whystuck trace whatif` tells what a fix gains\n"
        "Found 0 errors, 1 warning, 0 notes · verdict: slow\n"
    )


def test_text_of_traces_that_show_nothing_wrong() -> None:
    report = msgspec.structs.replace(make_report(), findings=[], verdict=Verdict.HEALTHY)

    lines = render_text(report, color=False, width=95).splitlines()

    assert lines[3] == "healthy: nothing is wrong in what was read"
    assert lines[-1] == "Found 0 errors, 0 warnings, 0 notes · verdict: healthy"
    assert len(lines) < 10


def test_text_of_traces_without_work_says_what_to_do() -> None:
    report = Report(
        verdict=Verdict.INCONCLUSIVE,
        gaps=[Gap(None, "work of devices in the traces", "trace with the device")],
        coverage=Coverage(1, 1, ["traces"]),
        traces=TraceOverview(files=1, vendor="cpu"),
    )

    text = render_text(report, color=False, width=95)

    assert "read 1 of 1 rank · traces without a device" in text
    assert "= fix: trace some steps again, with the device" in text
    assert "note[E901]: no work of devices in the traces: trace with the device" in text


def test_other_findings_keep_the_long_form() -> None:
    report = make_report()
    first = msgspec.structs.replace(report.findings[0], code="S301")

    text = render_text(msgspec.structs.replace(report, findings=[first]), color=False, width=95)

    assert "= confidence: certain" in text


class Bars(HTMLParser):
    """Collects the parts of each bar."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[list[tuple[str, float, float]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert "style" not in values, "the content policy forbids inline styles"
        if tag == "svg" and values.get("class") == "bar":
            self.bars.append([])
        elif tag == "rect" and "x" in values:
            x, width = (float(values[name].rstrip("%")) for name in ("x", "width"))
            self.bars[-1].append((values["class"], x, width))


def read_bars(report: Report) -> list[list[tuple[str, float, float]]]:
    parser = Bars()
    parser.feed(render_html(report))
    return parser.bars


def test_html_has_a_bar_for_each_rank_and_its_parts_fill_it() -> None:
    bars = read_bars(make_report())

    assert len(bars) == 8
    assert bars[-1] == [
        ("compute", 0.0, 60.0),
        ("exposed_comm", 60.0, 10.0),
        ("data_wait", 70.0, 30.0),
    ]


def test_bars_do_not_stick_out_whatever_the_figures_are() -> None:
    bad = [TraceBar(label="0", step_ms=1.0, shares=[0.9, 0.9, -1.0])]
    report = msgspec.structs.replace(
        make_report(), traces=msgspec.structs.replace(make_overview(), bars=bad)
    )

    ((first, second),) = read_bars(report)

    assert first == ("compute", 0.0, 90.0)
    assert second == ("exposed_comm", 90.0, 10.0)


def test_names_from_traces_are_escaped_in_all_formats() -> None:
    report = make_report(HOSTILE)
    hostile = make_overview(label=HOSTILE)
    split = [*hostile.split, TraceShare(name=HOSTILE, share=0.1, most=0.1)]
    bars = [msgspec.structs.replace(bar, shares=[*bar.shares, 0.1]) for bar in hostile.bars]
    traces = msgspec.structs.replace(hostile, split=split, bars=bars, vendor=HOSTILE)
    report = msgspec.structs.replace(report, traces=traces)

    page = render_html(report)

    assert "<script>alert" not in page
    assert "<img" not in page
    assert "<img" not in render_markdown(report)
    text = render_text(report, color=False, width=95)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", page + text)


def test_markdown_has_the_parts() -> None:
    text = render_markdown(make_report())

    assert "| exposed communication | 40% | 40% (rank 7) |" in text


def test_reports_without_traces_say_nothing_of_them() -> None:
    report = msgspec.structs.replace(make_report(), traces=TraceOverview())

    assert lay_out_traces(report.traces) is None
    assert "Where the time went" not in render_html(report)


@pytest.mark.parametrize(("ranks", "bars"), [(1, 1), (64, 64), (65, 7), (2000, 7)])
def test_many_ranks_are_shown_by_quantiles_and_those_that_stand_out(ranks: int, bars: int) -> None:
    numbers = list(range(ranks))
    step_time = Table(
        {
            "rank": whole_column(numbers),
            "step": whole_column([3] * ranks),
            "wall_ns": whole_column([100_000_000 + rank for rank in numbers]),
            "compute_ns": whole_column([60_000_000] * ranks),
            "idle_ns": whole_column([40_000_000 + rank for rank in numbers]),
        }
    )
    headers = tuple(RankHeader(rank=rank, events=9, host=f"n{rank // 8}") for rank in numbers)
    facts = TraceFacts(TraceSummary(headers, {"step_time": step_time}), Policy())

    overview = describe_traces(facts)

    assert len(overview.bars) == bars
    assert overview.files == ranks
    assert overview.step_ms == pytest.approx(100, abs=0.01)
    if ranks > 64:
        assert [bar.label for bar in overview.bars][-3:] == [
            f"slowest (rank {ranks - 1})", "most compute (rank 0)", f"most idle (rank {ranks - 1})"
        ]  # fmt: skip
    for bar in overview.bars:
        assert sum(bar.shares) == pytest.approx(1, abs=1e-3)
