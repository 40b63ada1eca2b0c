"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing import (
    compilations,
    data_waits,
    host_syncs,
    step_time,
    steps,
    temporal,
)
from whystuck.tracing.metric import CrossMetric, Metric

METRICS: tuple[Metric, ...] = (
    temporal.METRIC,
    # the host
    steps.METRIC,
    step_time.METRIC,
    data_waits.METRIC,
    host_syncs.METRIC,
    compilations.METRIC,
)
CROSS_METRICS: tuple[CrossMetric, ...] = ()
