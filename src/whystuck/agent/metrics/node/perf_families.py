"""Which figures the counters of processors give, for the node or for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from whystuck.agent.metrics.families import counter, gauge
from whystuck.agent.metrics.node import perf_events
from whystuck.agent.metrics.node.perf_events import Event
from whystuck.agent.metrics.rank.labels import RANK_LABELS
from whystuck.evidence.nodes.metrics import MetricFamily

GROUPS: tuple[tuple[Event, ...], ...] = (
    (perf_events.CYCLES, perf_events.INSTRUCTIONS),
    (perf_events.CACHE_MISSES, perf_events.BRANCH_MISSES, perf_events.DTLB_MISSES),
)
"""Counted by default. Events of one group are counted at the same time."""
SOFTWARE_GROUPS = ((perf_events.TASK_CLOCK, perf_events.PAGE_FAULTS, perf_events.CONTEXT_SWITCHES),)
"""What the kernel counts itself, on any machine."""
_WORDS = {
    "cycles": "Cycles of processors",
    "instructions": "Instructions retired",
    "cache_misses": "Misses of the last cache",
    "branch_misses": "Branches predicted wrong",
    "dtlb_misses": "Misses of the data TLB by reads",
    "task_clock": "Nanoseconds that ran",
    "page_faults": "Page faults",
    "context_switches": "Context switches",
}
_OF_ALL = "; of the whole node where job and rank are empty"


class Scope(StrEnum):
    """Whom to count."""

    AUTO = "auto"
    """The node where that is allowed, else the ranks."""
    NODE = "node"
    RANKS = "ranks"


def make_total(event: Event) -> MetricFamily:
    """Return the figure that grows."""
    return counter(f"perf_{event.name}_total", f"{_WORDS[event.name]}{_OF_ALL}.", *RANK_LABELS)


def make_rate(event: Event) -> MetricFamily:
    """Return the figure of a second."""
    text = f"{_WORDS[event.name]} per second since the reading before{_OF_ALL}."
    return gauge(f"perf_{event.name}_per_second", text, *RANK_LABELS)


def list_families(groups: Sequence[Sequence[Event]]) -> tuple[MetricFamily, ...]:
    """Return the figures of groups of counters."""
    return tuple(
        make(event) for group in groups for event in group for make in (make_total, make_rate)
    )


FAMILIES: tuple[MetricFamily, ...] = list_families(GROUPS)
