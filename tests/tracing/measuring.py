"""Metrics of made traces, as rows of named values."""

from __future__ import annotations

from typing import Any

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView


def measure_rows(metric: Metric, trace: Trace, **options: Any) -> list[dict[str, Any]]:
    """Measure a metric; its columns must be those that it tells."""
    chosen = TraceOptions(**options)
    table = metric.measure(TraceView(trace, chosen), chosen)
    assert tuple(table.columns) == metric.columns
    assert all(column.dtype.kind in "ifbO" for column in table.columns.values())
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows()]
