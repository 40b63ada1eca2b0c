"""The page that joins the stages of a comparison: the traces of two runs in, a report out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.failures import Failures
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rules.cost.p509_regression import (
    Regression,
    describe_same,
    is_doubtful,
    list_names,
)
from whystuck.evidence.finding import Coverage, Finding, Gap, Report, Severity, Verdict
from whystuck.evidence.model import Evidence
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.read.traces.inputs import find_inputs
from whystuck.read.traces.locations import no_trace
from whystuck.read.traces.plan import Progress, ReadPlan
from whystuck.read.traces.reading import fold_traces
from whystuck.tracing.diff.comparison import compare_sides, find_obstacle
from whystuck.tracing.diff.metrics import DIFF_TABLES
from whystuck.tracing.diff.side import Side

_ADVICE = "it may be chance: trace more steps of both, e.g. 20"
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
    failures = Failures()
    findings = failures.run_rules([Regression], Scene(Evidence(traces=summary), policy), policy)
    is_compared = len(tables["diff_summary"]) == 1
    obstacle = find_obstacle(a, b)
    is_open = is_compared and is_doubtful(tables["diff_summary"], policy)
    gaps = [*_name_side("A", a), *_name_side("B", b)]
    if obstacle is not None:
        gaps.append(obstacle)
    if is_open:
        gaps.append(Gap(None, "certainty about the difference", _ADVICE))
    context: dict[str, Any] = {"kind": "trace diff"}
    if obstacle is not None:
        context["sentence"] = "A and B cannot be compared"
    elif not (findings or failures):
        context["sentence"] = _describe(summary, threshold_percent, is_open=is_open)
    is_decided = is_compared and not is_open and bool(findings or not failures)
    report = Report(
        verdict=_judge(findings, is_decided=is_decided),
        findings=[*findings, *failures.list_findings()],
        gaps=gaps,
        coverage=_cover(a, b),
        context=context,
    )
    return Comparison(report, tables)


def _judge(findings: Sequence[Finding], *, is_decided: bool) -> Verdict:
    if not is_decided:
        return Verdict.INCONCLUSIVE
    is_slow = any(item.severity is not Severity.NOTE for item in findings)
    return Verdict.SLOW if is_slow else Verdict.HEALTHY


def _describe(summary: TraceSummary, threshold_percent: float, *, is_open: bool) -> str:
    text = describe_same(summary.get("diff_summary"), threshold_percent, is_open=is_open)
    counts = [(len(list_names(summary, status)), status) for status in ("added", "removed")]
    told = [f"{count} ops or kernels {status}" for count, status in counts if count]
    return "; ".join([text, *told])


def _name_side(name: str, side: Side) -> list[Gap]:
    """Tell whose the gaps are; which rank it is does not matter where there is one trace."""
    gaps = side.gaps if len(side.ranks) > 1 else [gap for gap in side.gaps if not _is_rank(gap)]
    return [Gap(gap.rank, gap.what, f"in {name}: {gap.reason}") for gap in gaps]


def _is_rank(gap: Gap) -> bool:
    return "tells no rank" in gap.reason


def _cover(a: Side, b: Side) -> Coverage:
    seen = {one.rank for side in (a, b) for one in side.ranks}
    return Coverage(len(seen), len(seen), ["traces"])
