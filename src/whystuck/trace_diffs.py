"""The page that joins the stages of a comparison: the traces of two runs in, a report out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rules.p509_regression import Regression, describe_same, list_names
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Coverage, Finding, Gap, Report, Severity, Verdict
from whystuck.evidence.model import Evidence
from whystuck.evidence.table import Table
from whystuck.evidence.trace_tables import TraceSummary
from whystuck.pipeline import no_trace
from whystuck.trace_engine.inputs import find_inputs
from whystuck.trace_engine.reading import Progress, ReadPlan, fold_traces
from whystuck.tracing.diff import compare_sides
from whystuck.tracing.diff_metrics import DIFF_TABLES
from whystuck.tracing.diff_side import Side

# Tables that are written for the user.
PUBLIC_TABLES = ("diff_ops", "diff_kernels", "diff_tree", "diff_changes", "diff_ranks")


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison: the report, and the tables that it rests on."""

    report: Report
    tables: dict[str, Table]


def read_run(place: str, plan: ReadPlan, progress: Progress | None = None) -> Side:
    """Read the traces of one run.

    Args:
        place: A path or URL of a trace, or of a folder of them.
        plan: How they are read; which tables are made is chosen here.
        progress: Called with the number of files that are read, and of all.

    Returns:
        The run, ready to be compared.

    Raises:
        UsageError: The place is missing, or holds no trace that can be read.
    """
    inputs, gaps = find_inputs([place])
    options = replace(plan.options, tables=DIFF_TABLES, only_tables=True)
    side = Side(place)
    read = fold_traces(
        inputs, dataclasses.replace(plan, options=options), side.add, progress=progress
    )
    side.gaps = [*gaps, *read.gaps]
    if not read.files:
        raise no_trace(place, read)
    return side


def compare_runs(a: Side, b: Side, threshold_percent: float) -> Comparison:
    """Compare two runs whose traces were read.

    Args:
        a: The first run.
        b: The second.
        threshold_percent: How much longer a step must take to be a regression.

    Returns:
        The report, with a finding when the runs differ, and the tables.
    """
    tables = dict(compare_sides(a, b))
    summary = TraceSummary(tables=tables)
    policy = Policy(regression_percent=threshold_percent)
    findings = list(Regression().check(Scene(Evidence(traces=summary), policy), policy))
    is_compared = len(tables["diff_summary"]) == 1
    gaps = [*_name_side("A", a), *_name_side("B", b), *([] if is_compared else _advise(a, b))]
    context: dict[str, Any] = {"kind": "trace diff"}
    if is_compared and not findings:
        context["sentence"] = _describe(summary, threshold_percent)
    report = Report(
        verdict=_judge(findings, is_compared=is_compared),
        findings=findings,
        gaps=gaps,
        coverage=_cover(a, b),
        context=context,
    )
    return Comparison(report, tables)


def _judge(findings: Sequence[Finding], *, is_compared: bool) -> Verdict:
    if not is_compared:
        return Verdict.INCONCLUSIVE
    is_slow = any(item.severity is not Severity.NOTE for item in findings)
    return Verdict.SLOW if is_slow else Verdict.HEALTHY


def _describe(summary: TraceSummary, threshold_percent: float) -> str:
    text = describe_same(summary.get("diff_summary"), threshold_percent)
    counts = [(len(list_names(summary, status)), status) for status in ("added", "removed")]
    told = [f"{count} ops or kernels {status}" for count, status in counts if count]
    return "; ".join([text, *told])


def _name_side(name: str, side: Side) -> list[Gap]:
    """Tell whose the gaps are; which rank it is does not matter where there is one trace."""
    gaps = side.gaps if len(side.ranks) > 1 else [gap for gap in side.gaps if not _is_rank(gap)]
    return [Gap(gap.rank, gap.what, f"in {name}: {gap.reason}") for gap in gaps]


def _is_rank(gap: Gap) -> bool:
    return "tells no rank" in gap.reason


def _advise(a: Side, b: Side) -> list[Gap]:
    for name, side in (("A", a), ("B", b)):
        if not side.steps:
            return [Gap(None, "events", f"in {name}: there are none that could be compared")]
    bare = "A" if -1 in a.steps else "B"
    reason = "the other run has some: call `profiler.step()` after each step in both, or in none"
    return [Gap(None, "profiler steps", f"in {bare}: {reason}")]


def _cover(a: Side, b: Side) -> Coverage:
    seen = {one.rank for side in (a, b) for one in side.ranks}
    return Coverage(len(seen), len(seen), ["traces"])
