"""Why streams and devices ran nothing: the host was late, a kernel had to wait, or else."""

from __future__ import annotations

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import Whole, sum_groups
from whystuck.tracing.device.gaps import Gaps
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "device",
    "stream",
    "host_wait_ns",
    "kernel_wait_ns",
    "other_ns",
    "unlinked_ns",
)
_SUMMARY_COLUMNS = (
    "rank",
    "device",
    "idle_ns",
    "host_wait_ns",
    "kernel_wait_ns",
    "other_ns",
    "unlinked_ns",
)


def measure_idle_causes(view: TraceView, options: TraceOptions) -> Table:
    """Tell the gaps between work on each stream apart by their cause.

    A gap is ``host_wait`` when the work that ends it was launched after the work before it ended,
    so that the host came late. It is ``kernel_wait`` when it is shorter than the threshold: what it
    takes to start one piece of work after another. It is ``other`` when neither holds: work waited
    for other streams or devices. Work whose launch is not in the trace ends no ``host_wait``;
    ``unlinked_ns`` is the part of the two others that ends with such work, of which the true cause
    is not known. The three causes are those of HTA (``get_idle_time_breakdown``).

    Args:
        view: The trace.
        options: ``idle_threshold_ns`` is the threshold.

    Returns:
        A row a stream.
    """
    queues = view.queues
    causes = _sum_causes(view.stream_gaps, len(queues), options.idle_threshold_ns)
    rank = view.rank_column(len(queues))
    values = (rank, queues.device, queues.stream, *causes)
    return Table.of(_COLUMNS, values)


def measure_idle_summary(view: TraceView, options: TraceOptions) -> Table:
    """Tell the time in which no stream of a device ran anything apart by its cause.

    Causes are those of ``idle_causes``, with the streams of a device taken as one.

    Args:
        view: The trace.
        options: ``idle_threshold_ns`` is the threshold.

    Returns:
        A row a device.
    """
    devices = view.devices
    causes = _sum_causes(view.device_gaps, len(devices), options.idle_threshold_ns)
    rank = view.rank_column(len(devices))
    values = (rank, devices, causes[0] + causes[1] + causes[2], *causes)
    return Table.of(_SUMMARY_COLUMNS, values)


def _sum_causes(gaps: Gaps, size: int, threshold_ns: int) -> tuple[Whole, Whole, Whole, Whole]:
    """Sum up host wait, kernel wait, other and unlinked time of each place, in ns."""
    is_short = gaps.is_short(threshold_ns)
    host, short, other, unlinked = (
        sum_groups(gaps.gap_ns[chosen], gaps.place[chosen], size)
        for chosen in (gaps.is_host, is_short, ~gaps.is_host & ~is_short, gaps.is_unlinked)
    )
    return host, short, other, unlinked


METRIC = Metric("idle_causes", _COLUMNS, measure_idle_causes, of=of_devices)
SUMMARY_METRIC = Metric("idle_summary", _SUMMARY_COLUMNS, measure_idle_summary, of=of_devices)
