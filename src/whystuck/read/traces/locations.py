"""Traces at paths and URLs: read to a summary, or mapped to partials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystuck.evidence.errors import UsageError
from whystuck.evidence.model import Evidence, Topology
from whystuck.read.pool import Progress

# What reads traces is imported where it is needed: it is a third of all modules, and the report of
# a job that has ended is waited for.
if TYPE_CHECKING:
    from whystuck.read.traces.plan import ReadPlan, RowSink
    from whystuck.read.traces.reading import TracesRead


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
