"""The one page that joins the stages: a path in, a report out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.summaries.ops_view import View
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence, Topology
from whystuck.guarded.evidence_files import list_archived, settle
from whystuck.parse.dumps.safe_pickle import collector_paused
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.patterns import find_literals
from whystuck.parse.logs.signatures import Signature, load_signatures, parse_signatures
from whystuck.read.collected import Choice
from whystuck.read.content import read_content
from whystuck.read.dump_files import Progress
from whystuck.read.round_logs import MAX_BYTES as MAX_ROUND_LOG_BYTES
from whystuck.read.runs import Selection, select_all
from whystuck.read.tree import read_tree
from whystuck.report import KEPT_WIDTH, render_all
from whystuck.report.text import render_text
from whystuck.safe_text.values import hide_values

# What reads traces is imported where it is needed: it is a third of all modules, and the report of
# a job that has ended is waited for.
if TYPE_CHECKING:
    from whystuck.read.traces.reading import ReadPlan, RowSink, TracesRead

__all__ = [
    "MAX_ROUND_LOG_BYTES",
    "Choice",
    "Signature",
    "analyze_traces",
    "diagnose_evidence",
    "diagnose_paths",
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


def read_paths(
    paths: Sequence[Path], progress: Progress | None = None, choice: Choice | None = None
) -> Evidence:
    """Read what is at some paths, as evidence of one job.

    Args:
        paths: Evidence folders, parts of them, or foreign files and folders, in any mix.
        progress: Called while dumps are read, with the number of those done and of all.
        choice: What is read; everything when left out.

    Returns:
        The evidence.

    Raises:
        UsageError: A path is missing, or holds nothing that can be read.
    """
    for path in paths:
        _check_path(path)
    choice = choice or Choice()
    names = ", ".join(str(path) for path in paths)
    # The user's own links are followed; what his file is called tells whose it is.
    paths = [settle(path) if path.is_dir() else settle(path.parent) / path.name for path in paths]
    choice = replace(choice, targets={path: settle(path) for path in paths if path.is_symlink()})
    base = _find_base(paths)
    try:
        chosen = (
            Selection(tuple(paths))
            if choice.prefix
            else select_all(paths, only_logs=choice.only_logs, home=choice.home)
        )
        evidence = read_tree(
            list(chosen.roots), base, chosen.incident, progress, choice, chosen.replaced
        )
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise UsageError(f"cannot read {names}: {reason}", hint="check the permissions") from error
    if evidence is None:
        if choice.prefix:
            raise UsageError(
                f"no dump has `{choice.prefix}` and a number in its name",
                hint="without `--prefix`, dumps are told from what is in them",
            )
        raise _no_evidence(names, choice)
    return replace(evidence, job=chosen.job, gaps=(*evidence.gaps, *chosen.gaps))


def _find_base(paths: Sequence[Path]) -> Path:
    """Return the folder that citations are relative to."""
    if len(paths) > 1:
        return Path.cwd()
    # One that is not there is a folder in an archive.
    return paths[0].parent if paths[0].is_file() else paths[0]


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


def read_traces(
    places: Sequence[str],
    plan: ReadPlan | None = None,
    *,
    progress: Progress | None = None,
    sink: RowSink | None = None,
) -> TracesRead:
    """Read traces of one job, each in its own process where there are many.

    Args:
        places: Paths and URLs of traces, of partials, and of folders of them.
        plan: How they are read; the defaults when left out.
        progress: Called with the number of files that are read, and of all.
        sink: Gets the tables with a row for each event.

    Returns:
        The summary over all ranks, and what could not be read.

    Raises:
        UsageError: A place is missing, or holds no trace that can be read.
    """
    from whystuck.read.traces.inputs import find_inputs
    from whystuck.read.traces.reading import read_traces as read_inputs

    inputs, gaps = find_inputs(places)
    read = read_inputs(inputs, plan, progress=progress, sink=sink)
    read.gaps = [*gaps, *read.gaps]
    if not read.files:
        raise no_trace(", ".join(places), read)
    return read


def map_traces(
    places: Sequence[str], plan: ReadPlan, *, progress: Progress | None = None
) -> TracesRead:
    """Make the partials of traces, and reduce nothing: what a training node does.

    Args:
        places: Paths and URLs of traces, and of folders of them.
        plan: How they are read; its ``partials`` is where they go.
        progress: Called with the number of files that are read, and of all.

    Returns:
        The headers of the traces, and what could not be read.

    Raises:
        UsageError: A place is missing, or holds no trace that can be read.
    """
    from whystuck.read.traces.inputs import find_inputs
    from whystuck.read.traces.reading import map_traces as map_inputs

    inputs, gaps = find_inputs(places)
    read = map_inputs(inputs, plan, progress=progress)
    read.gaps = [*gaps, *read.gaps]
    if not read.files:
        raise no_trace(", ".join(places), read)
    return read


def list_trace_tables() -> tuple[str, ...]:
    """List the names of all tables of traces."""
    from whystuck.tracing.metrics import CROSS_METRICS, METRICS

    crossed = {name for one in CROSS_METRICS for name in one.names}
    return tuple(sorted(crossed | {one.name for one in METRICS}))


def list_needed_tables(names: Sequence[str]) -> tuple[str, ...]:
    """List the tables of ranks that tables over all ranks are made from."""
    from whystuck.tracing.metrics import CROSS_METRICS

    return tuple(need for one in CROSS_METRICS if set(names) & set(one.names) for need in one.needs)


def list_public_tables() -> tuple[str, ...]:
    """List the tables that are for users, and not only for other tables."""
    from whystuck.tracing.metrics import PUBLIC_TRACE_TABLES

    return PUBLIC_TRACE_TABLES


def make_trace_evidence(read: TracesRead) -> Evidence:
    """Make evidence of traces and nothing else."""
    node_by_rank = {one.rank: one.host for one in read.summary.ranks if one.host}
    return Evidence(
        topology=Topology(node_by_rank=node_by_rank),
        traces=read.summary,
        gaps=tuple(read.gaps),
        is_partly_read=read.is_partial,
    )


def no_trace(places: str, read: TracesRead) -> UsageError:
    """Say that no trace was read, and why."""
    if not read.gaps:
        return UsageError(
            f"there is no trace in {places}",
            hint="a trace is what torch.profiler's `export_chrome_trace` writes, packed or not",
        )
    reason = read.gaps[0].reason
    more = f", and {len(read.gaps) - 1} more" if len(read.gaps) > 1 else ""
    return UsageError(f"no trace in {places} can be read: {reason}{more}", hint="write it again")


def read_signatures(path: Path) -> tuple[Signature, ...]:
    """Read a user's table of known log lines, and lay it over ours.

    Args:
        path: CSV, or TOML when its name ends so.

    Returns:
        All signatures, the user's new ones first.

    Raises:
        UsageError: The file cannot be read, or a row of it cannot be used; the row is named.
    """
    try:
        data = read_content(settle(path))
        is_toml = path.suffix.lower() == ".toml"
        return parse_signatures(data, base=load_signatures(), toml=is_toml)
    except ParseError as error:
        raise UsageError(
            f"`{path}`: {error.message}", hint="the guide about known log lines has an example"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot read `{path}`: {reason}", hint="give a CSV or TOML file of known log lines"
        ) from error


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


def prepare_report() -> None:
    """Load what any report needs, for who makes one later and does not want to wait then."""
    for signature in load_signatures():
        find_literals(signature.regex)
    render_all(diagnose_evidence(Evidence()))


def render_terminal(report: Report, *, color: bool) -> str:
    """Render a report for a terminal that shows a job's output too.

    Args:
        report: The report.
        color: Whether the terminal wants colours.

    Returns:
        The text of ``report.txt``, with colours when wanted.
    """
    return render_text(report, color=color, width=KEPT_WIDTH)


def read_evidence(
    path: Path, progress: Progress | None = None, choice: Choice | None = None
) -> Evidence:
    """Read what is at a path.

    Args:
        path: An evidence folder, any folder in it, or foreign files.
        progress: Called while dumps are read, with the number of those done and of all.
        choice: What is read; everything when left out.

    Returns:
        The evidence. Of several runs, that of the newest one.

    Raises:
        UsageError: The path is missing, or holds nothing that can be read.
    """
    return read_paths([path], progress, choice)


def _check_path(path: Path) -> None:
    if not path.exists():
        if list_archived(path):
            return
        raise UsageError(
            f"{path} does not exist",
            hint="give the evidence folder that `whystuck run` printed, or a folder of dumps",
        )
    if not path.is_dir() and not path.is_file():
        # A pipe has no end that could be looked at first, and reading it may wait for ever.
        raise UsageError(
            f"{path} is {_name_kind(path)}, not a file or a folder",
            hint="write what comes out of it to a file, and give that",
        )


def _name_kind(path: Path) -> str:
    if path.is_fifo():
        return "a pipe"
    return "a socket" if path.is_socket() else "a device"


def _no_evidence(path: str, choice: Choice | None) -> UsageError:
    if choice and choice.only_logs:
        return UsageError(
            f"there is no log in {path}",
            hint="logs are text files; `whystuck diagnose` reads other evidence too",
        )
    return UsageError(
        f"no readable evidence in {path}",
        hint="give flight-recorder dumps, py-spy or faulthandler stacks, logs, or a folder of them",
    )
