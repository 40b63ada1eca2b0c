"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing import (
    collective_calls,
    collectives,
    compilations,
    data_waits,
    host_syncs,
    idle,
    kernels,
    launches,
    overlap,
    step_time,
    steps,
    temporal,
)
from whystuck.tracing.critical import chains, job
from whystuck.tracing.critical import tables as critical
from whystuck.tracing.metric import CrossMetric, Metric
from whystuck.tracing.whatif import edges as whatif_edges
from whystuck.tracing.whatif import tables as whatif

METRICS: tuple[Metric, ...] = (
    # devices
    temporal.METRIC,
    overlap.METRIC,
    idle.METRIC,
    idle.SUMMARY_METRIC,
    kernels.METRIC,
    launches.METRIC,
    launches.SUMMARY_METRIC,
    # the host
    steps.METRIC,
    step_time.METRIC,
    data_waits.METRIC,
    host_syncs.METRIC,
    compilations.METRIC,
    # across ranks
    collective_calls.METRIC,
    # the critical path
    critical.PATH,
    critical.SUMMARY,
    chains.METRIC,
    *whatif_edges.METRICS,
)
CROSS_METRICS: tuple[CrossMetric, ...] = (
    collectives.CROSS_METRIC,
    job.CROSS_METRIC,
    whatif.CROSS_METRIC,
)
