"""The analysis of traces from Python."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.trace.test_analyze import write_trace

from whystuck import traces
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        write_trace(tmp_path / f"{rank}.json", rank, kernel_us=10 + rank)
    return tmp_path


def test_tables_are_columns(folder: Path) -> None:
    analysis = traces.analyze(folder)

    kernels = analysis.tables["kernels"]
    assert analysis.report.verdict is Verdict.HEALTHY
    assert [one.rank for one in analysis.ranks] == [0, 1]
    assert analysis.gaps == ()
    assert kernels["sum_ns"].tolist() == [10_000, 11_000]
    assert kernels["sum_ns"].dtype == np.int64
    assert list(kernels.columns)[:3] == ["rank", "class", "name"]
    assert len(kernels) == 2
    assert [row["name"] for row in kernels.rows()] == ["gemm", "gemm"]


def test_tables_become_data_frames(folder: Path) -> None:
    kernels = traces.analyze(str(folder)).tables["kernels"]

    assert kernels.to_pandas()["sum_ns"].sum() == 21_000
    frame = kernels.to_polars()
    assert frame["sum_ns"].sum() == 21_000
    assert frame["name"].to_list() == ["gemm", "gemm"]


def test_tables_with_a_row_for_each_event_are_asked_for(folder: Path) -> None:
    with pytest.raises(KeyError, match="tables=\\['launches'\\]"):
        traces.analyze(folder).tables["launches"]

    assert len(traces.analyze([folder], tables=["launches"]).tables["launches"]) == 2


def test_unknown_tables_are_told(folder: Path) -> None:
    with pytest.raises(KeyError, match="there is no table kernel;"):
        traces.analyze(folder).tables["kernel"]
    with pytest.raises(UsageError, match="there is no table"):
        traces.analyze(folder, tables=["kernel"])


def test_what_cannot_be_read_is_an_error_or_a_gap(folder: Path, tmp_path: Path) -> None:
    (folder / "rank7.json").write_text('{"traceEvents": [{"ph')

    analysis = traces.analyze(folder)

    assert [gap.rank for gap in analysis.gaps] == [7]
    with pytest.raises(UsageError, match="does not exist"):
        traces.analyze(tmp_path / "nothing")


def test_a_notebook_shows_the_report_and_tables_as_text(folder: Path) -> None:
    hostile = r"<script>alert(1)</script> $\href{javascript:alert(1)}{x}$"
    write_trace(folder / "0.json", 0, name=hostile)

    analysis = traces.analyze(folder)

    assert "read 2 of 4 ranks" in repr(analysis)
    assert analysis._repr_html_().startswith("<pre>")
    shown = analysis.tables["kernels"]._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    # Notebooks set formulas in HTML, too, and links in them, but for code.
    assert re.search(r"<code>[^<]*\$\\href[^<]*\$</code>", shown)
    assert "$" not in re.sub(r"<code>.*?</code>", "", shown)
    assert "<th>sum_ns</th>" in shown
