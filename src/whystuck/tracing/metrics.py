"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing import idle, kernels, launches, overlap, temporal
from whystuck.tracing.metric import CrossMetric, Metric

METRICS: tuple[Metric, ...] = (
    # What devices did.
    temporal.METRIC,
    overlap.METRIC,
    idle.METRIC,
    idle.SUMMARY_METRIC,
    kernels.METRIC,
    launches.METRIC,
    launches.SUMMARY_METRIC,
)
CROSS_METRICS: tuple[CrossMetric, ...] = ()
