"""S301 by times that ranks or tools print: who takes longest for work of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.named_slow import make_named
from whystuck.diagnose.logs.cases.slow.slow_tables import make_throttled
from whystuck.diagnose.logs.cases.slow.slowest_lines import list_phases
from whystuck.diagnose.logs.cases.slow.time_tables import (
    Times,
    Told,
    are_stages,
    find_middle,
    has_more_work,
    is_felt,
    is_wait,
    read_last_table,
)
from whystuck.diagnose.logs.cases.slow.uneven_work import list_uneven
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
# Who is slow takes this much longer than the median, while all others are near to it.
_SLOW, _ALIKE, _NEAR = 1.25, 1.12, 0.1
_LEAST_MS = 5.0
_LEAST_RANKS = 4
# Of lines that are the same.
_MOST_COUNTED = 256
# Of more, the job is made of different stages rather than of slow ranks.
_MOST_SHARE = 0.25
# Where the others tell that they wait for them.
_SLOW_FELT, _MOST_FELT = 1.06, 0.34
# A rank's own work; what ranks do together takes as long as the slowest of them.
_OWN = (
    *("compute", "forward", "backward", "fwd", "bwd", "batch", "data", "optimizer", "layer"),
    *("input", "loader", "fetch", "h2d", "preproc", "collat", "augment", "decode", "tokeniz"),
    *("kernel", "gemm", "attention"),
)
_SHARED = ("sync", "send", "recv", "reduce", "gather", "scatter", "all-", "broadcast", "communic")
# The range of all ranks is told, and not whose the ends are: it must be wide.
_WIDE, _LEAST_WIDE_MS = 1.5, 20.0
_STAGES = ("recv", "send")

# A phase and its time: `fwd 231.0 ms`, `forward-compute: 231.0`, `backward time=0.4s`
_TIME = re.compile(
    r"\b((?:fwd|forward|bwd|backward|compute|optimizer|data)[A-Za-z_/-]{0,30})(?: time)?"
    r"(?:\s{0,2}[:=]\s{0,3}(\d{1,9}(?:\.\d{1,6})?)\s{0,2}(ms|us|s)?"
    r"|\s{1,3}(\d{1,9}(?:\.\d{1,6})?)\s?(ms|us|s))(?![\w.])"
)
_MS = {"s": 1000.0, "us": 0.001}
# Several ranks in one line: `rank 3: 412`, `r3=412`, or a list of numbers
_RANKS = re.compile(
    r"\b(?:[Rr]ank[ _]?|r)(\d{1,7})\s?[:=]\s?(\d{1,9}(?:\.\d{1,6})?)\s?(ms|us|s)?(?![\w.])"
)
_LIST = re.compile(r"\branks?\b.{0,40}?\[\s?((?:\d[\d.]{0,15},\s?){2,1024}\d[\d.]{0,15})\s?\]")
_PHASE = re.compile(r"\b((?:fwd|forward|bwd|backward)[A-Za-z_/-]{0,30})")
_SAID = re.compile(r"\brank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


def make_stragglers(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose own work takes longer than that of all others.

    Not where their devices are throttled: that says why, of the same ranks.
    """
    slowed = list(make_throttled(view))
    throttled = {rank for case in slowed for rank in case.ranks}
    for case in _make_cases(view):
        if not case.ranks or not throttled.issuperset(case.ranks):
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


def find_slow_ranks(view: LogView) -> tuple[int, ...]:
    """Return the ranks whose own work takes longer than that of all others."""
    for times in _list_times(view):
        if slow := _list_slow(view, times):
            return tuple(sorted(slow))
    return ()


def _list_times(view: LogView) -> Iterator[Times]:
    """Yield the times of a table, and those of lines, as far as no table tells who waits."""
    table = read_last_table(view)
    yield table
    if not any(map(is_wait, table)):
        yield _read_lines(view)


def _make_cases(view: LogView) -> Iterator[Case]:
    for times in _list_times(view):
        slow = _list_slow(view, times)
        if slow:
            ranks = sorted({rank for by_rank in times.values() for rank in by_rank})
            case = _make_slow(slow, ranks)
            host = _find_host(set(slow), [one for told in times.values() for one in told.items()])
            yield _blame_host(case, host) if host else case
            return
    named = list(make_named(view))
    yield from named or _make_wide(view)


def _list_slow(view: LogView, times: Times) -> dict[int, tuple[str, LogEvent, float, float]]:
    """Return the ranks that are slow: for what, as which line tells, how long, and the median.

    The phase is the one for which it takes longest.
    """
    slow: dict[int, tuple[str, LogEvent, float, float]] = {}
    has_waits = any(is_wait(phase) for phase in times)
    for phase, by_rank in times.items():
        took = {rank: one.ms for rank, one in by_rank.items()}
        late = _find_slow(phase, took)
        if not late and has_waits:
            late = _find_slow(phase, took, is_felt=True)
        if late and are_stages(by_rank, [rank for rank, _ in late]):
            continue
        for rank, middle in late:
            told = by_rank[rank]
            known = slow.get(rank)
            is_more = known is None or told.ms - middle > known[2] - known[3]
            if "table" in told.event.groups:
                is_more &= is_felt(times, rank, told.ms - middle)
                is_more &= not has_more_work(view, told.event)
            if is_more:
                slow[rank] = phase, told.event, told.ms, middle
    return slow


def _read_lines(view: LogView) -> Times:
    """Return the middle of the times that ranks print for each phase, each in a line of its own.

    Lines that have the times of several ranks count as if each had printed its own.
    """
    found: dict[str, dict[int, list[Told]]] = {}
    if list_uneven(view):
        return {}  # who takes longer has more to do
    for event in list_phases(view):
        for phase, rank, ms in _read_times(event):
            told = [Told(ms, event)] * min(event.count, _MOST_COUNTED)
            found.setdefault(phase, {}).setdefault(rank, []).extend(told)
    return {
        phase: {rank: find_middle(told) for rank, told in by_rank.items()}
        for phase, by_rank in found.items()
    }


def _read_times(event: LogEvent) -> Iterator[tuple[str, int, float]]:
    """Yield the phases, ranks and times of a line."""
    text = event.text
    several = [(int(rank), value, unit) for rank, value, unit in _RANKS.findall(text)]
    if listed := _LIST.search(text):
        several = [(rank, value, "") for rank, value in enumerate(listed[1].split(","))]
    phase = _PHASE.search(text)
    if phase and len(several) >= _LEAST_RANKS:
        for rank, value, unit in several:
            if rank <= MAX_RANK and value.strip().replace(".", "", 1).isdecimal():
                yield phase[1], rank, float(value) * _MS.get(unit, 1.0)
        return
    said = _SAID.search(text)
    rank = event.rank if event.rank >= 0 or said is None else int(said[1])
    if not 0 <= rank <= MAX_RANK:
        return
    for name, one, unit, other, its_unit in _TIME.findall(text):
        yield name, rank, float(one or other) * _MS.get(unit or its_unit, 1.0)


def _find_slow(
    phase: str, times: Mapping[int, float], *, is_felt: bool = False
) -> list[tuple[int, float]]:
    """Return the ranks that take longer for work of their own, with the median of all.

    Where a table tells that the others wait for them, less is enough, and of more ranks.
    """
    if not _is_own(phase) or len(times) < _LEAST_RANKS:
        return []
    middle = median(times.values())
    least = max(middle * (_SLOW_FELT if is_felt else _SLOW), middle + _LEAST_MS)
    slow = [rank for rank, ms in times.items() if ms > least]
    others = [ms for rank, ms in times.items() if rank not in slow]
    if not slow or not others:
        return []
    # Of what takes next to no time, others may differ widely, and by little beside who is slow.
    excess = min(times[rank] for rank in slow) - middle
    alike = middle + _NEAR * excess
    if not is_felt:
        alike = max(middle * _ALIKE + 1, alike)
    share = _MOST_FELT if is_felt else _MOST_SHARE
    is_clear = len(slow) <= share * len(times) and max(others) <= alike
    return [(rank, middle) for rank in slow] if is_clear else []


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
        ranks=(),
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
        if not _is_own(phase) or most < max(least * _WIDE, least + _LEAST_WIDE_MS):
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


def _is_own(phase: str) -> bool:
    """Tell whether a phase is work that a rank does alone."""
    name = phase.lower()
    return any(word in name for word in _OWN) and not any(word in name for word in _SHARED)
