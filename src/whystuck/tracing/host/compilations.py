"""Time in which code was compiled or loaded while the job ran."""

from __future__ import annotations

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.host.spans import find_compilations
from whystuck.tracing.host.steps import find_steps
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "step", "name", "count", "sum_ns")
_TIMED = " (dynamo_timed)"


def measure_compilations(view: TraceView, options: TraceOptions) -> Table:
    """Measure how long each step compiled.

    Only the outermost of nested phases count, and each belongs to the step in which it began.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step and name of what compiled; the step is -1 outside steps.
    """
    del options
    events, rows = view.events, find_compilations(view)
    step = find_steps(view).number_at(events.start_ns[rows])
    groups = group_rows(step, events.name[rows])
    names = pick_texts(view.trace.names, events.name[rows][groups.first])
    columns = (
        view.rank_column(len(groups)),
        step[groups.first],
        text_column([name.removesuffix(_TIMED) for name in names.tolist()]),
        groups.count,
        groups.sum(events.duration_ns[rows]),
    )
    return Table.of(_COLUMNS, columns)


METRIC = Metric("compilations", _COLUMNS, measure_compilations, of=find_compilations)
