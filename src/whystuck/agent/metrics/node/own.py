"""What the agent itself costs, and how its parts do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from whystuck import __version__
from whystuck.agent.metrics.collector import Collector
from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.collect.processes.proc_files import read_stat
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Counts = Mapping[tuple[str, str], float]
"""How often something happened in a part of the agent: (part, event) to number."""

_INFO = gauge("agent_info", "1; says which version of the agent this is.", "version")
_EVENTS = counter("agent_events_total", "What happened in a part of the agent.", "part", "event")
_PLAIN = {
    "cpu": counter("agent_cpu_seconds_total", "Processor time of the agent."),
    "share": gauge(
        "agent_cpu_ratio", "Share of one processor that it used since the reading before."
    ),
    "rss": gauge("agent_resident_memory_bytes", "Memory of the agent."),
    "files": gauge("agent_open_fds", "Open files of the agent."),
    "threads": gauge("agent_threads", "Threads of the agent."),
    "pace": gauge(
        "agent_pace_ratio", "How many times less often figures are read, to save processor time."
    ),
    "started": gauge("agent_start_time_seconds", "When it was started, since the epoch."),
}
_SOURCE = {
    "ok": gauge("agent_source_up", "1 when a source gives all its figures.", "source"),
    "runs": counter("agent_source_runs_total", "Times a source was read.", "source"),
    "errors": counter("agent_source_errors_total", "Times that failed.", "source"),
    "cpu": counter("agent_source_cpu_seconds_total", "Processor time of a source.", "source"),
    "last": gauge("agent_source_duration_seconds", "How long its last reading took.", "source"),
}
_DROPPED = counter(
    "agent_dropped_samples_total",
    "Samples left out: too many series of one metric, no number, or labels that do not fit.",
    "family",
)
_SINK = {
    "ok": gauge("agent_sink_up", "1 when the last round could be passed on.", "sink"),
    "written": counter("agent_sink_rounds_total", "Rounds passed on.", "sink"),
    "dropped": counter(
        "agent_sink_dropped_rounds_total", "Rounds lost because a sink was slow.", "sink"
    ),
    "errors": counter("agent_sink_errors_total", "Rounds that a sink failed to pass on.", "sink"),
}
FAMILIES: tuple[MetricFamily, ...] = (
    *(_INFO, _EVENTS, *_PLAIN.values(), *_SOURCE.values(), _DROPPED, *_SINK.values()),
)


class OwnSource:
    """The agent's own figures.

    Args:
        read_counts: What has happened in other parts, such as ``("fabric", "requests")``; called
            from a thread.
        every_s: Seconds between two readings.

    `watch` tells it the collector, which is made after its sources.
    """

    name = "own"
    families = FAMILIES

    def __init__(
        self, read_counts: Callable[[], Counts] = dict, *, every_s: float = EVERY_S
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._read_counts = read_counts
        self._collector: Collector | None = None
        self._began_s = time.time()
        self._before = (time.monotonic(), time.process_time())

    def watch(self, collector: Collector) -> None:
        """Tell how the sources and sinks of this collector do."""
        self._collector = collector

    def collect(self) -> Iterable[Sample]:
        """Read our own /proc and what all parts counted."""
        now_ns = time.time_ns()
        samples = [Sample(family=_INFO, value=1.0, labels=(__version__,), time_ns=now_ns)]
        samples += fill(_PLAIN, self._measure(), (), now_ns)
        samples += [
            Sample(family=_EVENTS, value=value, labels=key, time_ns=now_ns)
            for key, value in self._read_counts().items()
        ]
        if self._collector is not None:
            samples += _tell_collector(self._collector, now_ns)
        return samples

    def _measure(self) -> dict[str, float | None]:
        now = (time.monotonic(), time.process_time())
        before, self._before = self._before, now
        passed_s = now[0] - before[0]
        fields = read_stat("self")
        return {
            "pace": self._collector.pace if self._collector else None,
            "cpu": now[1],
            "share": (now[1] - before[1]) / passed_s if passed_s > 0 else None,
            "rss": int(fields[21]) * _PAGE_BYTES,
            "threads": int(fields[17]),
            "files": len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208 - less the folder itself
            "started": self._began_s,
        }


def _tell_collector(collector: Collector, now_ns: int) -> list[Sample]:
    samples: list[Sample] = []
    for source in collector.source_states():
        values: dict[str, float | None] = {
            "ok": float(not source.problem),
            "runs": source.runs,
            "errors": source.errors,
            "cpu": source.cpu_s,
            "last": source.last_run_s,
        }
        samples += fill(_SOURCE, values, (source.name,), now_ns)
    for sink in collector.sink_states():
        told: dict[str, float | None] = {
            "ok": float(not sink.problem),
            "written": sink.written,
            "dropped": sink.dropped,
            "errors": sink.errors,
        }
        samples += fill(_SINK, told, (sink.name,), now_ns)
    for family, number in collector.dropped().items():
        samples.append(
            Sample(family=_DROPPED, value=number, labels=(family or "unknown",), time_ns=now_ns)
        )
    return samples
