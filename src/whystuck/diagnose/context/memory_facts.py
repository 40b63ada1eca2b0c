"""What looks at the memory of hosts, cgroups and ranks say of a rank that was killed."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.context.scene import Scene
from whystuck.evidence.nodes.resources import HostState, MemorySeries

_MIB = 1 << 20
_NS_PER_S = 1e9


@dataclass(frozen=True)
class MemoryKill:
    """Ranks that ended by SIGKILL while the kernel counted kills for lack of memory.

    ``count`` is how many it counted, ``group`` the cgroup that was full (empty: the host),
    ``limit`` and ``rss`` bytes, 0 when unknown; ``growth_mib_s`` how fast the first rank grew.
    """

    ranks: tuple[int, ...]
    count: int
    group: str = ""
    limit: int = 0
    rss: int = 0
    growth_mib_s: float = 0.0
    artifact: str = ""


def find_memory_kill(scene: Scene) -> MemoryKill | None:
    """Find the ranks that the kernel killed for lack of memory, as its counters tell."""
    killed = [rank for rank, name in scene.exits.killed_ranks.items() if name == "SIGKILL"]
    series = {item.rank: item for item in scene.evidence.memory}
    hosts: dict[str, dict[str, HostState]] = {}
    for state in scene.evidence.hosts:
        hosts.setdefault(state.node, {})[state.moment] = state
    for node, states in hosts.items():
        ranks = [rank for rank in killed if _is_on(scene, rank, node, len(hosts))]
        start, end = states.get("start"), states.get("end")
        if ranks and start is not None and end is not None:
            kill = _compare(start, end, ranks, series)
            if kill is not None:
                return kill
    return None


def _is_on(scene: Scene, rank: int, node: str, hosts: int) -> bool:
    known = scene.evidence.topology.node_by_rank.get(rank, "")
    return known == node or (not known and hosts == 1)


def _compare(
    start: HostState, end: HostState, ranks: list[int], series: dict[int, MemorySeries]
) -> MemoryKill | None:
    # Of those that were killed, the largest was the kernel's choice; others had other reasons.
    ordered = sorted(ranks, key=lambda rank: -_measure_rss(series.get(rank)))
    before = {group.path: group for group in start.groups}
    own = {series[rank].cgroup for rank in ordered if rank in series}
    # A group above counts the kills of other jobs too; its own is not seen from some containers.
    groups = [group for group in end.groups if group.path in own] or end.groups
    for group in groups:
        known = before.get(group.path)
        if known is not None and known.oom_kills >= 0 and group.oom_kills > known.oom_kills:
            count = group.oom_kills - known.oom_kills
            return _make(ordered, count, series, group.path, group.limit, end.artifact)
    if not end.groups and 0 <= start.oom_kills < end.oom_kills:
        return _make(ordered, end.oom_kills - start.oom_kills, series, "", 0, end.artifact)
    return None


def _make(
    ranks: list[int],
    count: int,
    series: dict[int, MemorySeries],
    group: str,
    limit: int,
    artifact: str,
) -> MemoryKill:
    chosen = tuple(sorted(ranks[: max(1, count)]))
    first = series.get(ranks[0])
    rss = _measure_rss(first)
    return MemoryKill(chosen, count, group, limit, rss, _measure_growth(first), artifact)


def _measure_rss(item: MemorySeries | None) -> int:
    return max((point.rss for point in item.points), default=item.peak) if item else 0


def _measure_growth(item: MemorySeries | None) -> float:
    """Return how fast the memory of a rank grew over the last half of its looks, in MiB/s."""
    points = item.points[len(item.points) // 2 :] if item else ()
    if len(points) < 2:  # noqa: PLR2004 - two make a slope
        return 0.0
    seconds = (points[-1].time_ns - points[0].time_ns) / _NS_PER_S
    return max(0.0, (points[-1].rss - points[0].rss) / _MIB / seconds) if seconds > 0 else 0.0
