"""All metrics, in the order in which their tables are listed."""

from __future__ import annotations

from whystuck.tracing.collectives import calls, matched_ops, op_costs, overlap
from whystuck.tracing.critical import chains, job
from whystuck.tracing.critical import tables as critical
from whystuck.tracing.device import (
    copies,
    hardware_counters,
    idle,
    kernel_ranks,
    kernels,
    launches,
    memory,
    queue_length,
    roofline,
    sequences,
    short_kernels,
    temporal,
    utilisation,
)
from whystuck.tracing.diff import items, nodes, shares
from whystuck.tracing.host import (
    autograd_links,
    compilations,
    data_waits,
    op_kernels,
    phases,
    python_frames,
    step_time,
    steps,
    syncs,
    unfinished,
    user_annotations,
)
from whystuck.tracing.metric import CrossMetric, Metric
from whystuck.tracing.whatif import edges as whatif_edges
from whystuck.tracing.whatif import tables as whatif

METRICS: tuple[Metric, ...] = (
    # devices
    temporal.METRIC,
    temporal.STREAM_METRIC,
    temporal.CLASS_METRIC,
    overlap.METRIC,
    idle.METRIC,
    idle.SUMMARY_METRIC,
    kernels.METRIC,
    launches.METRIC,
    launches.SUMMARY_METRIC,
    queue_length.METRIC,
    queue_length.SERIES_METRIC,
    copies.METRIC,
    copies.SERIES_METRIC,
    short_kernels.METRIC,
    unfinished.METRIC,
    utilisation.METRIC,
    # the host
    steps.METRIC,
    step_time.METRIC,
    data_waits.METRIC,
    syncs.METRIC,
    compilations.METRIC,
    op_kernels.METRIC,
    op_kernels.LAUNCHES,
    sequences.METRIC,
    roofline.METRIC,
    phases.METRIC,
    autograd_links.METRIC,
    python_frames.METRIC,
    python_frames.MODULES,
    memory.METRIC,
    memory.TIMELINE,
    hardware_counters.METRIC,
    user_annotations.METRIC,
    user_annotations.WORK,
    # across ranks
    calls.METRIC,
    # two runs compared
    items.STEPS,
    items.ITEMS,
    shares.SHARES,
    nodes.NODES,
    # the critical path
    critical.PATH,
    critical.SUMMARY,
    chains.METRIC,
    *whatif_edges.METRICS,
)
CROSS_METRICS: tuple[CrossMetric, ...] = (
    kernel_ranks.METRIC,
    matched_ops.CROSS_METRIC,
    op_costs.METRIC,
    job.CROSS_METRIC,
    whatif.CROSS_METRIC,
)
# What `--tables` writes beside the tables that are always made.
PUBLIC_TRACE_TABLES = (
    "launches",
    "critical_path",
    "critical_summary",
    "path_chains",
    "phases",
    "autograd",
    "gpu_utilisation",
    "python_frames",
    "modules",
)
