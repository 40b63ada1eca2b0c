"""The map and the reduce: a trace to tables of its rank, and those of all ranks to a summary."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, reduce
from operator import or_

import msgspec

from whystuck.evidence.table import Table, concat_tables
from whystuck.evidence.traces.events import Detail, Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables, TraceSummary
from whystuck.tracing.arrays.allocation import keep_freed_memory
from whystuck.tracing.metric import Metric
from whystuck.tracing.metrics import CROSS_METRICS, METRICS
from whystuck.tracing.view import TraceView

_LAST_NS = 2**63 - 1


def measure_rank(trace: Trace, options: TraceOptions) -> RankTables:
    """Reduce the trace of one rank to tables.

    Args:
        trace: The trace.
        options: What to measure.

    Returns:
        The default tables, and those that the options name.
    """
    keep_freed_memory()
    view = TraceView(trace, options)
    events = len(trace.events)
    header = RankHeader(
        artifact=trace.artifact,
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host,
        vendor=trace.vendor,
        base_ns=trace.base_ns,
        events=events,
        device_events=len(view.all_device_rows),
        groups={group.name: list(group.ranks) for group in trace.groups},
        gaps=list(trace.gaps),
        started_ns=trace.base_ns + int(view.events.start_ns.min(initial=_LAST_NS)) if events else 0,
        ended_ns=trace.base_ns + int(view.end_ns.max(initial=-_LAST_NS)) if events else 0,
    )
    made = {one.name: _measure(one, view, options) for one in _list_wanted(options)}
    return RankTables(header, made)


def _measure(metric: Metric, view: TraceView, options: TraceOptions) -> Table:
    if metric.of is not None and not len(metric.of(view)):
        return _measure_nothing(metric)
    return metric.measure(view, options)


@cache
def _measure_nothing(metric: Metric) -> Table:
    """Return the table without rows; one is held for all ranks."""
    return metric.measure(TraceView(Trace()), TraceOptions())


def find_detail(options: TraceOptions) -> Detail:
    """Tell which arguments of events are to be decoded for what is to be measured."""
    return reduce(or_, (one.detail for one in _list_wanted(options)), Detail.NONE)


def _list_wanted(options: TraceOptions) -> list[Metric]:
    return [
        one
        for one in METRICS
        if one.name in options.tables or (one.is_default and not options.only_tables)
    ]


def reduce_ranks(
    ranks: Sequence[RankTables], options: TraceOptions, without: Collection[str] = ()
) -> TraceSummary:
    """Put the tables of all ranks together.

    Args:
        ranks: One for each trace.
        options: As they were measured.
        without: Tables that those over all ranks are made from, and that are not put together.

    Returns:
        The tables of ranks below each other, in ascending order, and those over all ranks.
    """
    ranks = sorted(ranks, key=lambda one: (one.header.rank, one.header.artifact))
    names = dict.fromkeys(name for one in ranks for name in one.tables if name not in without)
    tables = {
        name: concat_tables([one.tables.get(name, Table()) for one in ranks]) for name in names
    }
    for metric in CROSS_METRICS:
        tables |= metric.measure(ranks, options)
    return TraceSummary(tuple(one.header for one in ranks), tables)


def with_rank(tables: RankTables, rank: int) -> RankTables:
    """Give the tables of a trace another rank, where the trace itself tells none."""
    moved = {}
    for name, table in tables.tables.items():
        columns = dict(table.columns)
        if "rank" in columns and len(table):
            columns["rank"] = columns["rank"] * 0 + rank
        moved[name] = Table(columns) if len(table) else table
    return RankTables(msgspec.structs.replace(tables.header, rank=rank), moved)
