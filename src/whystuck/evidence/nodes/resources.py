"""What a job used of its nodes, and which processes took part: memory, its limits, claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from whystuck.evidence.nodes.records import ClaimEntry, HostEntry


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """The memory of a rank at one moment, in bytes.

    ``rss`` is what its process holds, ``virtual`` its address space, and ``below`` what its
    children hold, such as data-loader workers; pages that they share count for each of them.
    """

    time_ns: int
    rss: int
    virtual: int = 0
    below: int = 0


@dataclass(frozen=True, slots=True)
class MemorySeries:
    """The memory of the process of one rank over its life.

    Attributes:
        rank: The rank.
        pid: Its process.
        node: The host, empty when unknown.
        points: Looks at it, oldest first; the last ones lie nearer to each other.
        peak: The most that its process held, in bytes; 0 when unknown.
        address_limit: RLIMIT_AS in bytes; 0 when there is none.
        data_limit: RLIMIT_DATA in bytes; 0 when there is none.
        rss_limit: RLIMIT_RSS in bytes; 0 when there is none. Linux does not enforce it.
        worker_pids: Its children that were seen, such as data-loader workers.
        cgroup: The path of its memory cgroup, empty when unknown.
        artifact: The file.
    """

    rank: int
    pid: int
    points: tuple[MemoryPoint, ...]
    node: str = ""
    peak: int = 0
    address_limit: int = 0
    data_limit: int = 0
    rss_limit: int = 0
    worker_pids: tuple[int, ...] = ()
    cgroup: str = ""
    artifact: str = ""


class CpuPoint(NamedTuple):
    """Times so far, in nanoseconds; ``throttled_ns`` is -1 when unknown."""

    time_ns: int
    run_ns: int
    delay_ns: int
    throttled_ns: int


@dataclass(frozen=True, slots=True)
class CpuSeries:
    """What processors the main thread of a rank got, the oldest point first.

    The other figures are those of `whystuck.evidence.nodes.records.CpuRecord`.
    """

    rank: int
    pid: int
    points: tuple[CpuPoint, ...]
    node: str = ""
    cgroup: str = ""
    artifact: str = ""
    looks: int = 0
    stopped: int = 0
    resumed: int = 0
    demand_ns: int = 0
    busy_ns: int = 0
    demand_over_ns: int = 0
    cores: int = 0

    @property
    def demand(self) -> float:
        """How many of its threads ran, or waited to run, at a time; 0 when unknown."""
        return self.demand_ns / self.demand_over_ns if self.demand_over_ns else 0.0

    @property
    def busy_threads(self) -> float:
        """How many of its threads have something to do now and then; 0 when unknown."""
        return self.busy_ns / self.demand_over_ns if self.demand_over_ns else 0.0


class GarbagePoint(NamedTuple):
    """Counts so far: looks, those of them that met a full collection, and full collections."""

    time_ns: int
    looks: int
    seen: int
    full: int


@dataclass(frozen=True, slots=True)
class GarbageSeries:
    """How often one rank was seen in a full collection of garbage, the oldest point first."""

    rank: int
    pid: int
    points: tuple[GarbagePoint, ...]
    node: str = ""
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState(HostEntry):
    """A node at one moment: ``start`` (of the round) or ``end`` (when the incident was closed)."""

    node: str
    moment: str
    artifact: str = ""


@dataclass(frozen=True, kw_only=True)
class RankClaim(ClaimEntry):
    """A claim, where it was made and where it was read; ``row`` is its place in the file from 0."""

    node: str = ""
    artifact: str = ""
    row: int = -1
