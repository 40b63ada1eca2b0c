"""Times that tables tell of ranks: of each phase and rank, the middle one of the last table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MS = 1000.0
# Times of a table without a unit are seconds where none is larger.
MOST_S = 50.0
# What ranks do together, or wait in: who is late for it waits least.
_WAITS = (
    *("wait", "reduce", "nccl", "rccl", "hccl", "comm", "sync", "barrier", "gather", "scatter"),
    *("idle", "a2a", "all2all", "alltoall", "exposed", "non_compute", "non-compute", "noncompute"),
)
# Reduce-scatter, all-gather and all-reduce, as people shorten them.
_SHORT = re.compile(r"(?<![a-z])(?:rs|ag|ar)(?![a-z])")
# Others wait for who is slow, at least this share of what it takes longer.
_FELT = 0.3
# Ranks that take as long for the same work are not slow.
_SAME_RATE = 1.1


@dataclass(frozen=True)
class Told:
    """How long a rank took for a phase, and the line that tells it."""

    ms: float
    event: LogEvent


# phase -> rank -> time
Times = dict[str, dict[int, Told]]


def find_middle(told: list[Told]) -> Told:
    """Return the time in the middle of several."""
    return sorted(told, key=lambda one: one.ms)[len(told) // 2]


def read_last_table(view: LogView) -> Times:
    """Return the times of each phase and rank in the last table of a log.

    Nothing where nobody knows which ranks they are: numbers of devices count on each host, and so
    do those of ranks that stand there for several hosts.
    """
    events = list(view.list_signatures("table.time"))
    if not events:
        return {}
    last = events[-1].artifact, events[-1].groups["table"]
    events = [one for one in events if (one.artifact, one.groups["table"]) == last]
    if not _are_ranks(view, events):
        return {}
    bare = [float(one.groups["bare"]) for one in events if "bare" in one.groups]
    scale = _MS if max(bare, default=0.0) < MOST_S else 1.0
    found: dict[str, dict[int, list[Told]]] = {}
    for event in events:
        told = event.groups
        ms = float(told["ms"]) if "ms" in told else scale * float(told["bare"])
        found.setdefault(told["phase"], {}).setdefault(int(told["own"]), []).append(Told(ms, event))
    return {
        phase: {rank: find_middle(told) for rank, told in by_rank.items()}
        for phase, by_rank in found.items()
    }


def _are_ranks(view: LogView, events: Iterable[LogEvent]) -> bool:
    """Tell whether the numbers in a table are those of ranks."""
    hosts: dict[str, set[str]] = {}
    is_device = False
    for event in events:
        hosts.setdefault(event.groups["own"], set()).add(event.groups.get("host") or "")
        is_device |= event.groups.get("by") == "device"
        if event.groups.get("by") == "device of many":
            return False
    is_once = all(len(told) == 1 for told in hosts.values())
    return is_once and (not is_device or view.world_size in (0, len(hosts)))


def is_felt(times: Times, rank: int, excess_ms: float) -> bool:
    """Tell whether others wait for a rank, by what a table tells of their waits.

    What it does longer beside the step, such as loading ahead, nobody waits for. Where the table
    has no waits, nobody knows.
    """
    waits: dict[int, float] = {}
    for phase, by_rank in times.items():
        if is_wait(phase):
            for one, told in by_rank.items():
                waits[one] = waits.get(one, 0.0) + told.ms
    others = [ms for one, ms in waits.items() if one != rank]
    if rank not in waits or not others:
        return True
    return median(others) - waits[rank] >= _FELT * excess_ms


def is_wait(phase: str) -> bool:
    """Tell whether a phase is what ranks do together."""
    small = phase.lower()
    is_shared = any(word in small for word in _WAITS) or _SHORT.search(small) is not None
    return is_shared and "data" not in small


def has_more_work(view: LogView, event: LogEvent) -> bool:
    """Tell whether the rank of a row takes longer as it has more to do, as its table tells."""
    rates: dict[str, list[float]] = {}
    for one in view.list_signatures("table.work"):
        work = float(one.groups["work"])
        if one.artifact == event.artifact and one.groups["table"] == event.groups["table"] and work:
            rates.setdefault(one.groups["own"], []).append(float(one.groups["took"]) / work)
    own = rates.get(event.groups["own"])
    return bool(own) and median(own or ()) <= _SAME_RATE * median(_middles(rates))


def are_stages(by_rank: Mapping[int, Told], slow: Collection[int]) -> bool:
    """Tell whether ranks are all those of some stages, which have work of their own."""
    stages = {rank: told.event.groups.get("stage") or "" for rank, told in by_rank.items()}
    mine = {stages[rank] for rank in slow}
    others = {stage for rank, stage in stages.items() if rank not in slow}
    return "" not in mine and mine.isdisjoint(others)


def _middles(rates: Mapping[str, list[float]]) -> list[float]:
    return [median(told) for told in rates.values()]
