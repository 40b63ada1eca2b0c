"""The sources of a node without accelerators, made from few settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whystuck.agent.interfaces import Source
from whystuck.agent.metrics.node.disks import DiskSource, VolumeSource
from whystuck.agent.metrics.node.host import EVERY_S, HostSource
from whystuck.agent.metrics.node.network import SKIPPED_INTERFACES, NetworkSource
from whystuck.agent.metrics.node.pressure import PressureSource
from whystuck.agent.metrics.rank.labels import RankProcess


def make_node_sources(
    list_ranks: Callable[[], Sequence[RankProcess]] = tuple,
    *,
    every_s: float = EVERY_S,
    is_per_core: bool = False,
    interfaces: tuple[Sequence[str], Sequence[str]] = ((), SKIPPED_INTERFACES),
    skip_mounts: Sequence[str] = (),
) -> list[Source]:
    """Return the sources of processors, memory, disks, file systems, networks and pressure.

    Args:
        list_ranks: The ranks of this node, whose cgroups are read.
        every_s: Seconds between two readings; file systems are asked six times less often.
        is_per_core: Whether each processor has figures of its own.
        interfaces: Patterns of network interfaces to take, all when empty, and to leave out.
        skip_mounts: Patterns of mount points to leave out.
    """
    include, exclude = interfaces
    return [
        HostSource(every_s=every_s, is_per_core=is_per_core),
        DiskSource(every_s=every_s),
        VolumeSource(every_s=6 * every_s, exclude=skip_mounts),
        NetworkSource(every_s=every_s, include=include, exclude=exclude),
        PressureSource(list_ranks, every_s=every_s),
    ]
