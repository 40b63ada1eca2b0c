"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing import temporal
from whystuck.tracing.metric import CrossMetric, Metric

METRICS: tuple[Metric, ...] = (temporal.METRIC,)
CROSS_METRICS: tuple[CrossMetric, ...] = ()
