"""Which ranks do not get the processor when they want to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.evidence.nodes.resources import CpuPoint, CpuSeries
from whystuck.evidence.ops.collectives import Collectives

# A quota that stops a rank for less of the time costs little, and one that stops its other threads
# nothing that can be told.
_MIN_THROTTLED = 0.25
_MIN_THROTTLED_WAIT = 0.2
# What a late rank waits more than the others is the reason if it is so much of what they lose.
_MIN_PART = 0.5
_MIN_WAIT = 0.05
# Who runs less than this share of the time has next to nothing to compute.
_MIN_RUN = 0.01
# Fewer seconds than this tell nothing.
_MIN_NS = 5e9
_UNKNOWN = -1
# Who is stopped by signals so often, and goes on, is slow and not stuck.
_MIN_STOPPED = 0.2
_MIN_RESUMED = 3
# Ranks whose threads want so many times the cores that there are, with so many threads that have
# something to do in each. Ranks that compute with one thread have five, with those of gloo: four of
# them on two cores want twice as many as there are.
_MIN_CROWD = 2.5
_MIN_THREADS = 8


@dataclass(frozen=True)
class CpuShare:
    """In which shares of a time the main thread of a rank ran, waited to run, or was stopped."""

    rank: int
    run_share: float
    wait_share: float
    throttled_share: float
    cgroup: str
    artifact: str
    stopped_share: float = 0.0
    node: str = ""
    demand: float = 0.0
    threads: float = 0.0
    cores: int = 0

    @property
    def is_crowded(self) -> bool:
        """Whether threads of its own may be what its main thread waits for."""
        return self.threads >= _MIN_THREADS

    @property
    def is_throttled(self) -> bool:
        """Whether its quota stops it for long."""
        is_long = self.throttled_share >= _MIN_THROTTLED
        return is_long and self.wait_share >= _MIN_THROTTLED_WAIT


@dataclass(frozen=True)
class Starved:
    """Ranks that do not get the processor, and who waits for them.

    The shares are those of the rank that has it worst; ``throttled_share`` is 0 where no quota is
    the reason. ``lost_share`` is what the others wait for them; where no rank is late, what the
    main threads of these wait for a processor.
    """

    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    shares: tuple[CpuShare, ...]
    lost_share: float
    # How many threads of the ranks of a node want to run at a time, where they crowd its cores.
    demand: float = 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time that the worst of them waits in the run queue."""
        return max(one.wait_share for one in self.shares)

    @property
    def throttled_share(self) -> float:
        """The share of the time for which a quota stops the worst of them."""
        return max(one.throttled_share if one.is_throttled else 0.0 for one in self.shares)

    @property
    def stopped_share(self) -> float:
        """The share of looks at which a signal had stopped the worst of them."""
        return max(one.stopped_share for one in self.shares)

    @property
    def cgroup(self) -> str:
        """The cgroup whose quota it is; empty where none is the reason."""
        return self.shares[0].cgroup if self.throttled_share else ""


def find_starved(
    series: Sequence[CpuSeries], late_ranks: Sequence[Late], table: Collectives
) -> Starved | None:
    """Find ranks that wait for a processor, late ones first.

    Args:
        series: What processors ranks got.
        late_ranks: Ranks that their peers wait for.
        table: All ops, which tell since when they are late.

    Returns:
        The ranks, None when there are none.
    """
    whole = _measure(series)
    stopped = [one for one in whole if one.stopped_share >= _MIN_STOPPED]
    if stopped:
        return _name_stopped(series, late_ranks, stopped)
    crowd = _find_crowd(whole)
    if crowd is not None:
        return crowd  # who is late is a matter of luck there
    for late in late_ranks:
        begin_ns, end_ns = (
            int(table.created_ns[row]) if row >= 0 else default
            for row, default in ((late.first_row, 0), (late.last_row, 1 << 62))
        )
        shares = _measure(series, begin_ns, end_ns)
        own = [one for one in shares if one.rank in late.ranks]
        peers = late.group.members.difference(late.ranks)
        others = [one for one in shares if one.rank in peers]
        if own and others:
            least = max(_MIN_WAIT, _MIN_PART * late.lost_share)
            if all(one.wait_share >= least + _expect_wait(one, others) for one in own):
                ranks = tuple(sorted(late.ranks))
                return Starved(ranks, tuple(sorted(peers)), tuple(own), late.lost_share)
    if late_ranks:
        return None
    shares = [one for one in whole if one.is_throttled]
    shares.sort(key=lambda one: -one.throttled_share)
    return _name_all(shares) if shares else None


def _name_all(shares: Sequence[CpuShare], demand: float = 0.0) -> Starved:
    """Name ranks that all wait for a processor, so that none is late."""
    ranks = tuple(sorted(one.rank for one in shares))
    lost = median(one.wait_share for one in shares)
    return Starved(ranks, (), tuple(shares), lost, demand)


def _find_crowd(shares: Sequence[CpuShare]) -> Starved | None:
    """Find a node whose ranks have more threads that want to run than it has cores for."""
    by_node: dict[str, list[CpuShare]] = {}
    for one in shares:
        by_node.setdefault(one.node, []).append(one)
    for here in by_node.values():
        demand, cores = sum(one.demand for one in here), max(one.cores for one in here)
        if cores and demand >= _MIN_CROWD * cores and all(one.is_crowded for one in here):
            return _name_all(sorted(here, key=lambda one: -one.wait_share), demand)
    return None


def _name_stopped(
    series: Sequence[CpuSeries], late_ranks: Sequence[Late], stopped: Sequence[CpuShare]
) -> Starved:
    """Name ranks that signals stop again and again, whether or not that shows in their steps."""
    ranks = tuple(sorted(one.rank for one in stopped))
    victims = tuple(sorted({one.rank for one in series} - set(ranks)))
    lost = max((one.lost_share for one in late_ranks if set(one.ranks) <= set(ranks)), default=0.0)
    return Starved(ranks, victims, tuple(stopped), lost)


def _expect_wait(own: CpuShare, others: Sequence[CpuShare]) -> float:
    """Return what a rank would wait as its peers do, for what it runs.

    Where all cores are busy, one that has more to compute waits more: that is no reason of its own.
    """
    wait_share = median(one.wait_share for one in others)
    run_share = median(one.run_share for one in others)
    return wait_share * max(1.0, own.run_share / max(run_share, _MIN_RUN))


def _measure(
    series: Sequence[CpuSeries], begin_ns: int = 0, end_ns: int = 1 << 62
) -> list[CpuShare]:
    """Measure what each rank got in a time."""
    found = []
    for one in series:
        points = [point for point in one.points if begin_ns <= point.time_ns <= end_ns]
        if _is_long(points):
            with_quota = [point for point in points if point.throttled_ns > _UNKNOWN]
            found.append(
                CpuShare(
                    one.rank,
                    _share(points, [point.run_ns for point in points]),
                    _share(points, [point.delay_ns for point in points]),
                    _share(with_quota, [point.throttled_ns for point in with_quota]),
                    one.cgroup,
                    one.artifact,
                    one.stopped / one.looks if one.resumed >= _MIN_RESUMED else 0.0,
                    one.node,
                    one.demand,
                    one.busy_threads,
                    one.cores,
                )
            )
    return found


def _is_long(points: Sequence[CpuPoint]) -> bool:
    return len(points) > 1 and points[-1].time_ns - points[0].time_ns >= _MIN_NS


def _share(points: Sequence[CpuPoint], total_ns: Sequence[int]) -> float:
    if not _is_long(points):
        return 0.0
    return min(
        1.0, max(0.0, (total_ns[-1] - total_ns[0]) / (points[-1].time_ns - points[0].time_ns))
    )
