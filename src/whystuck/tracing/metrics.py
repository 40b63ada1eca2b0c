"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing import collective_calls, collectives, temporal
from whystuck.tracing.metric import CrossMetric, Metric

METRICS: tuple[Metric, ...] = (
    temporal.METRIC,
    # across ranks
    collective_calls.METRIC,
)
CROSS_METRICS: tuple[CrossMetric, ...] = (collectives.CROSS_METRIC,)
