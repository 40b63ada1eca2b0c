"""S301 by times that ranks or tools print: who takes longest for work of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.pcie import make_pcie
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.named_slow import make_named
from whystuck.diagnose.logs.cases.slow.own_times import is_own, list_slow, list_times
from whystuck.diagnose.logs.cases.slow.slow_tables import make_throttled
from whystuck.diagnose.logs.cases.slow.time_tables import Told
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
# The range of all ranks is told, and not whose the ends are: it must be wide.
_WIDE, _LEAST_WIDE_MS = 1.5, 20.0
_STAGES = ("recv", "send")


def make_stragglers(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose own work takes longer than that of all others.

    Not where their devices are throttled, or their links: that says why, of the same ranks.
    """
    slowed = list(make_throttled(view))
    known = {rank for case in (*slowed, *make_pcie(view)) for rank in case.ranks}
    for case in _make_cases(view):
        if not case.ranks or not known.issuperset(case.ranks):
            yield _add_device(view, case, slowed)


def _add_device(view: LogView, case: Case, slowed: Iterable[Case]) -> Case:
    """Add that a device is throttled which has the number of that of the slow rank on its host.

    Ranks are mostly in the order of devices, and every host has as many. Whose device it is stays
    open where nobody says so: that the only slow rank would have it is told, and no more.
    """
    devices = {event.groups["index"] for event in view.list_signatures("table.device")}
    world = {*case.ranks, *case.victims}
    is_even = bool(devices) and world == set(range(len(world))) and not len(world) % len(devices)
    for one in slowed:
        told = one.details["devices"]
        if one.ranks or len(case.ranks) != 1 or not is_even or len(told) != 1:
            continue
        if told[0] == case.ranks[0] % len(devices):
            return replace(
                case,
                summary=f"{case.summary}; device {told[0]} of a host is slowed "
                f"({one.details['reasons']}), which is the number of its device",
                lines=(*case.lines, *one.lines)[:_MAX_LINES],
            )
    return case


def _make_cases(view: LogView) -> Iterator[Case]:
    for times in list_times(view):
        slow = list_slow(view, times)
        if slow:
            ranks = sorted({rank for by_rank in times.values() for rank in by_rank})
            case = _make_slow(slow, ranks)
            host = _find_host(set(slow), [one for told in times.values() for one in told.items()])
            yield _blame_host(case, host) if host else case
            return
    named = list(make_named(view))
    yield from named or _make_wide(view)


def _make_slow(slow: Mapping[int, tuple[str, LogEvent, float, float]], ranks: list[int]) -> Case:
    told = "; ".join(
        f"rank {rank}: {phase} {ms:.0f} ms, the median is {middle:.0f} ms"
        for rank, (phase, _, ms, middle) in sorted(slow.items())[:4]
    )
    phase, _, ms, middle = slow[min(slow)]
    return Case(
        code=codes.SLOW_RANK,
        summary=f"{name_ranks(slow)} {'takes' if len(slow) == 1 else 'take'} longer for work of "
        f"{'its' if len(slow) == 1 else 'their'} own than all others, who wait ({told})",
        tier=NOTE,
        ranks=tuple(sorted(slow)),
        victims=tuple(rank for rank in ranks if rank not in slow),
        lines=tuple(event for _, event, _, _ in slow.values())[:_MAX_LINES],
        details={"phase": phase, "clock_offset_ns": 0, "took_ms": ms, "others_ms": middle},
    )


def _find_host(slow: set[int], told: Iterable[tuple[int, Told]]) -> str:
    """Return the host of which all ranks are slow, and no others; empty where there is none."""
    hosts: dict[str, set[int]] = {}
    for rank, one in told:
        hosts.setdefault(one.event.groups.get("host") or "", set()).add(rank)
    found = [host for host, ranks in hosts.items() if host and ranks == slow and len(slow) > 1]
    return found[0] if found else ""


def _blame_host(case: Case, host: str) -> Case:
    """Tell of a host what was found of all its ranks."""
    return replace(
        case,
        code=codes.SLOW_NODE,
        summary=f"all ranks of {host} ({name_ranks(case.ranks)}) take longer for work of their own "
        f"than those of other hosts, who wait ({case.details['phase']} "
        f"{case.details['took_ms']:.0f} ms, the median is {case.details['others_ms']:.0f} ms)",
        nodes=(host,),
    )


def _make_wide(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose own times differ widely, where only both ends are told."""
    events = sorted(view.list_signatures("progress.range"), key=lambda event: event.row)
    last = {event.groups["phase"]: event for event in events}
    if any(word in phase for phase in last for word in _STAGES):
        return
    for phase, event in last.items():
        least, most = float(event.groups["least"]), float(event.groups["most"])
        if not is_own(phase) or most < max(least * _WIDE, least + _LEAST_WIDE_MS):
            continue
        yield Case(
            code=codes.SLOW_RANK,
            summary=f"some rank takes longer for work of its own than others, who wait ({phase}: "
            f"{least:.0f} to {most:.0f} ms); which one is not told",
            tier=NOTE,
            lines=(event,),
            time=find_time([event]),
            confidence=Confidence.POSSIBLE,
            details={"phase": phase, "clock_offset_ns": 0, "took_ms": most, "others_ms": least},
            remedies=("--timing-log-option all   # Megatron then prints the times of each rank",),
        )
        return
