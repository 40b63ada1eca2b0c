"""Traces of which tables or columns are missing: there is a report all the same."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.diagnose.traces.cases import (
    compiles,
    late_few_collectives,
    pageable,
    slow_input_of_rank_2,
    sync_often_on_rank_0,
    waits_for_each_other,
)
from tests.tracing.build import Collective, Program, Rank, run_job, write_job
from tests.tracing.data import find_traces

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.traces.columns import COLUMNS, read_table
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.pipeline import analyze_traces
from whystuck.report.text import render_text

REAL = ("hta_sampled_2rank", "injected/host_8rank_r5")
MADE: dict[str, Program] = {
    "late, no steps": late_few_collectives,
    "waits, no steps": waits_for_each_other,
    "late input": slow_input_of_rank_2,
    "syncs of one": sync_often_on_rank_0,
    "pageable": pageable,
    "compiles": lambda rank: compiles(rank, range(3, 9), {4, 6, 7}),
}


@cache
def read_set(name: str) -> tuple[TraceSummary, frozenset[int]]:
    """The tables of a set of traces, and the ranks that its report names."""
    if name in REAL:
        report, read = analyze_traces([str(find_traces() / name)])
    else:
        with TemporaryDirectory() as folder:
            write_job(Path(folder), run_job(MADE[name], 4))
            report, read = analyze_traces([folder])
    return read.summary, name_ranks(report)


def name_ranks(report: Report) -> frozenset[int]:
    return frozenset(rank for item in report.findings for rank in item.culprits.ranks)


def leave_out(summary: TraceSummary) -> Iterator[tuple[str, TraceSummary]]:
    """Leave out each table, and each column of each table."""
    for name, table in summary.tables.items():
        others = {key: one for key, one in summary.tables.items() if key != name}
        yield name, TraceSummary(summary.ranks, others)
        for column in table.columns if name in COLUMNS else ():
            left = {key: one for key, one in table.columns.items() if key != column}
            made = others | {name: Table(left)}
            yield f"{name}.{column}", TraceSummary(summary.ranks, made)


@pytest.mark.parametrize("name", [*MADE, *REAL])
def test_without_any_table_or_column_there_is_a_report(name: str) -> None:
    summary, ranks = read_set(name)

    for what, left in leave_out(summary):
        report = diagnose(Evidence(traces=left))

        assert render_text(report, color=False, width=80), what
        # Nobody is named whom all tables together do not name.
        assert name_ranks(report) <= ranks, what
        for item in report.findings:
            assert -1 not in item.culprits.ranks, what
            assert "-1" not in item.summary, what


@pytest.mark.parametrize("name", MADE)
def test_rules_read_only_columns_that_are_filled_in(name: str) -> None:
    summary, _ = read_set(name)
    only = {
        table: Table({one: read_table(summary, table)[one] for one in columns})
        for table, columns in COLUMNS.items()
    }

    whole = diagnose(Evidence(traces=summary))
    listed = diagnose(Evidence(traces=TraceSummary(summary.ranks, only)))

    assert [one.summary for one in listed.findings] == [one.summary for one in whole.findings]
    assert [one.measures for one in listed.findings] == [one.measures for one in whole.findings]


def test_a_step_without_all_its_parts_is_not_called_well() -> None:
    def idle(rank: Rank) -> Generator[Collective, float, None]:
        for number in range(3, 9):
            with rank.step(number):
                rank.launch("gemm", 5000.0)
                rank.synchronize()
        yield from ()

    with TemporaryDirectory() as folder:
        write_job(Path(folder), run_job(idle, 2))
        report, read = analyze_traces([folder])
    assert report.verdict == "healthy"

    table = read.summary.tables["step_time"]
    left = Table({name: one for name, one in table.columns.items() if name != "exposed_comm_ns"})
    tables = {**read.summary.tables, "step_time": left}

    assert diagnose(Evidence(traces=TraceSummary(read.summary.ranks, tables))).verdict == (
        "inconclusive"
    )
