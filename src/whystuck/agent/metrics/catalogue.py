"""All metrics there can be, for the reference, the dashboard and the alerts."""

from __future__ import annotations

from collections.abc import Mapping

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.agent.metrics.node import disks, host, network, own, perf_families, pressure
from whystuck.agent.metrics.rank import processes, progress
from whystuck.evidence.nodes.metrics import MetricFamily

CATALOGUE: Mapping[str, tuple[MetricFamily, ...]] = {
    "Processors, memory and load": host.FAMILIES,
    "Disks": disks.DISK_FAMILIES,
    "File systems": disks.VOLUME_FAMILIES,
    "Networks": network.FAMILIES,
    "Pressure and cgroups": pressure.FAMILIES,
    "Progress of ranks": progress.FAMILIES,
    "Processes of ranks": processes.FAMILIES,
    "Counters of processors": perf_families.FAMILIES,
    "Accelerators": gpu.GPU_FAMILIES,
    "The agent": own.FAMILIES,
}
"""Families by what they are about."""


def render_catalogue() -> str:
    """Return tables of all metrics, in Markdown."""
    parts = []
    for title, families in CATALOGUE.items():
        rows = [
            f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.help.rstrip('.')}. |"
            for one in families
        ]
        parts.append(
            "\n".join(
                [f"## {title}", "", "| metric | kind | labels | |", "|---|---|---|---|", *rows]
            )
        )
    return "\n\n".join(parts) + "\n"
