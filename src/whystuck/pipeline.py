"""The one page that joins the stages: a path in, a report out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.summaries.ops_view import View
from whystuck.evidence.collector import collector_paused
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.records import CpuRecord, GarbageRecord
from whystuck.parse.errors import ParseError
from whystuck.parse.node_records import make_cpu, make_garbage
from whystuck.parse.ops.marks import cut_marks
from whystuck.read.collected import Choice
from whystuck.read.paths import read_evidence, read_paths
from whystuck.read.pool import Progress
from whystuck.read.round_logs import MAX_BYTES as MAX_ROUND_LOG_BYTES
from whystuck.read.signature_tables import Signature, prepare_signatures, read_signatures
from whystuck.read.traces.locations import (
    list_needed_tables,
    list_public_tables,
    list_trace_tables,
    make_trace_evidence,
    map_traces,
    read_traces,
)
from whystuck.report import render_all, render_terminal
from whystuck.safe_text.values import hide_values

# What reads traces is imported where it is needed: it is a third of all modules, and the report of
# a job that has ended is waited for.
if TYPE_CHECKING:
    from whystuck.read.traces.plan import ReadPlan, RowSink
    from whystuck.read.traces.reading import TracesRead

__all__ = [
    "MAX_ROUND_LOG_BYTES",
    "Choice",
    "Signature",
    "analyze_traces",
    "cut_new_marks",
    "diagnose_evidence",
    "diagnose_paths",
    "judge_pace",
    "list_needed_tables",
    "list_public_tables",
    "list_trace_tables",
    "map_traces",
    "prepare_report",
    "read_evidence",
    "read_paths",
    "read_signatures",
    "read_traces",
    "render_all",
    "render_terminal",
]


def diagnose_paths(
    paths: Sequence[Path], progress: Progress | None = None, choice: Choice | None = None
) -> Report:
    """Read evidence of one job and say what is wrong.

    Args:
        paths: Evidence folders, parts of them, or foreign files and folders, in any mix.
        progress: Called while dumps are read, with the number of those done and of all.
        choice: What is read; everything when left out.

    Returns:
        The report.

    Raises:
        UsageError: A path is missing, or holds nothing that can be read.
    """
    # Evidence is many objects without cycles: to look for them took a tenth of 20,000 logs.
    with collector_paused():
        return diagnose_evidence(read_paths(paths, progress, choice))


def analyze_traces(
    places: Sequence[str],
    plan: ReadPlan | None = None,
    *,
    progress: Progress | None = None,
    sink: RowSink | None = None,
) -> tuple[Report, TracesRead]:
    """Read traces of one job and say where its time goes.

    Args:
        places: Paths and URLs of traces, of partials, and of folders of them.
        plan: How they are read; the defaults when left out.
        progress: Called with the number of files that are read, and of all.
        sink: Gets the tables with a row for each event.

    Returns:
        The report, and the summary that it rests on.

    Raises:
        UsageError: A place is missing, or holds no trace that can be read.
    """
    read = read_traces(places, plan, progress=progress, sink=sink)
    return diagnose_evidence(make_trace_evidence(read)), read


def diagnose_evidence(evidence: Evidence, view: View | None = None) -> Report:
    """Say what is wrong with a job.

    Args:
        evidence: All that is known of it at one moment.
        view: What to show of the recorded ops; little when left out.

    Returns:
        The report, without the secrets that logs held.
    """
    # Trees of stacks are as deep as the program; what renders them hides in the names they hold.
    return hide_values(diagnose(evidence, view=view), leave=("stacks",))


def judge_pace(
    files: Sequence[Path],
    ranks: Iterable[int],
    node: str,
    cpu: Mapping[int, CpuRecord],
    garbage: Mapping[int, GarbageRecord],
) -> Report:
    """Say which ranks of one node, if any, make the others wait in a job that runs.

    Args:
        files: Their op logs and marks; they may be written to meanwhile.
        ranks: The ranks.
        node: The node of these ranks.
        cpu: What processors they got, by rank.
        garbage: How often they were seen in their garbage collectors.

    Returns:
        A report with findings about the pace alone.

    Raises:
        UsageError: None of the files can be read.
    """
    evidence = read_paths(files, choice=Choice(only_used=True))
    topology = replace(evidence.topology, node_by_rank=dict.fromkeys(ranks, node))
    slow = replace(evidence.incident, kind="slow")
    seen = replace(
        evidence,
        topology=topology,
        incident=slow,
        cpu=tuple(make_cpu(record, rank=rank) for rank, record in cpu.items()),
        garbage=tuple(make_garbage(record, rank=rank) for rank, record in garbage.items()),
    )
    return diagnose_evidence(seen)


def cut_new_marks(data: bytes, first: int) -> tuple[bytes, int]:
    """Cut a file of marks down to those that are new.

    Args:
        data: The file.
        first: The number of the first mark that is wanted.

    Returns:
        A file with those, empty where there are none, and the number to ask for next time.
    """
    try:
        return cut_marks(data, first)
    except ParseError:
        return b"", first


def prepare_report() -> None:
    """Load what any report needs, for who makes one later and does not want to wait then."""
    prepare_signatures()
    render_all(diagnose_evidence(Evidence()))
