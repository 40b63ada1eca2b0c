"""Times that ranks print of their own work, and who takes longest for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from whystuck.diagnose.logs.cases.slow.named_slow import make_named
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
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK

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
    *(
        "input",
        "loader",
        "fetch",
        "h2d",
        "d2h",
        "preproc",
        "collat",
        "augment",
        "decode",
        "tokeniz",
    ),
    *("kernel", "gemm", "attention"),
)
_SHARED = ("sync", "send", "recv", "reduce", "gather", "scatter", "all-", "broadcast", "communic")
_WAITS = ("non_compute", "non-compute", "noncompute")
# A phase and its time: `fwd 231.0 ms`, `forward-compute: 231.0`, `backward time=0.4s`, and
# `h2d params 0.4s` of what is copied to and from a device
_TIME = re.compile(
    r"\b((?:fwd|forward|bwd|backward|compute|optimizer|data)[A-Za-z_/-]{0,30}"
    r"|(?:h2d|d2h|H2D|D2H)(?:[ _-][A-Za-z]{1,20}){0,3})(?: time)?"
    r"(?:\s{0,2}[:=]\s{0,3}(\d{1,9}(?:\.\d{1,6})?)\s{0,2}(ms|us|s)?"
    r"|\s{1,3}(\d{1,9}(?:\.\d{1,6})?)\s?(ms|us|s))(?![\w.])"
)
_MS = {"s": 1000.0, "us": 0.001}
# What is measured, between a rank and its time: `rank 3: fwd+bwd 412 ms`
_WHAT = r"(?:(?:fwd|forward|bwd|backward)[A-Za-z_/+-]{0,20}(?: [A-Za-z]{1,12}){0,2}[ =:]{1,3})"
# Several ranks in one line: `rank 3: 412`, `r3=412`, or a list of numbers
_RANKS = re.compile(
    rf"\b(?:[Rr]ank[ _]?|r)(\d{{1,7}})\s?[:=]\s?{_WHAT}?(\d{{1,9}}(?:\.\d{{1,6}})?)"
    r"\s?(ms|us|s)?(?![\w.])"
)
# The first of several, whose rank was taken for the writer of the line.
_FIRST = re.compile(
    rf"\s{{0,4}}{_WHAT}(\d{{1,9}}(?:\.\d{{1,6}})?)\s?(ms|us|s)?\s{{0,4}}[|,;]\s{{0,4}}(?:[Rr]ank|r)"
)
# Where what is told of a rank begins, of several in a line: `[rank0] h2d 41ms  [rank1] h2d 40ms`
_BEGIN = re.compile(
    r"(?:^|[\s|,;])\[?(?:global[ _]?)?rank[ _=]?(\d{1,7})\]?:?(?=\s)", re.IGNORECASE
)
_LIST = re.compile(r"\branks?\b.{0,40}?\[\s?((?:\d[\d.]{0,15},\s?){2,1024}\d[\d.]{0,15})\s?\]")
# `rank:fwd+bwd ms | 0:402 1:399 2:404`
_PAIRED = re.compile(
    r"\branks? ?[:=/] ?(?:fwd|forward|bwd|backward|comp)[^|>\d]{0,40}[|>:=-]{1,2} ?"
    r"((?:\d{1,6}[:=]\d{1,9}(?:\.\d{1,6})?[ ,;]{1,3}){2,1024}\d{1,6}[:=]\d{1,9})"
)
_PAIR = re.compile(r"(\d{1,6})[:=](\d{1,9}(?:\.\d{1,6})?)")
_PHASE = re.compile(r"\b((?:fwd|forward|bwd|backward)[A-Za-z_/-]{0,30})")
_SAID = re.compile(r"\brank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


@dataclass(frozen=True)
class SlowRank:
    """The one rank that takes longer for work of its own than all others.

    Attributes:
        rank: Its number.
        why: For what it takes longer, and how long.
        event: The line that tells it.
        compared: How many ranks were compared, 0 where a tool named it.
    """

    rank: int
    why: str
    event: LogEvent
    compared: int = 0


def find_rank_by_number(
    view: LogView, index: int, node: str, *, listed: int = 0
) -> SlowRank | None:
    """Return the one slow rank where it has the number of a device of its host that is slow.

    Where a device has only a place among so many that are ``listed``, that is its number if there
    is one for each rank.

    Ranks of a host are mostly in the order of its devices. That the only one that is slow has the
    number of the only device that is slow is no chance: each says of the other whose it is. Devices
    of several hosts have the same numbers; then the host of the rank must be known.
    """
    sole = _find_sole(view)
    if sole is None or sole.rank != index or (listed and sole.compared != listed):
        return None
    rows = view.list_signatures("table.device", "table.slowdown")
    hosts = {row.groups.get("host") or row.node for row in rows}
    own = sole.event.groups.get("host") or view.node_by_rank.get(index, "")
    is_same = is_same_host(own, node) if own and node else len(hosts) <= 1
    return sole if is_same else None


def _find_sole(view: LogView) -> SlowRank | None:
    """Return the one rank that is slow, by times that ranks print or by a tool that names it."""
    tables = ((times, list_slow(view, times)) for times in list_times(view))
    times, slow = next(((times, slow) for times, slow in tables if slow), ({}, {}))
    if len(slow) == 1:
        ((rank, (phase, event, ms, middle)),) = slow.items()
        why = f"rank {rank} takes {ms:.0f} ms for {phase}, where the median is {middle:.0f} ms"
        return SlowRank(rank, why, event, len(times[phase]))
    named = [] if slow else [case for case in make_named(view) if len(case.ranks) == 1]
    if len(named) != 1 or not named[0].lines:
        return None
    rank = named[0].ranks[0]
    return SlowRank(rank, f"rank {rank} is slower than all others", named[0].lines[0])


def find_slow_ranks(view: LogView) -> tuple[int, ...]:
    """Return the ranks whose own work takes longer than that of all others."""
    for times in list_times(view):
        if slow := list_slow(view, times):
            return tuple(sorted(slow))
    return ()


def list_times(view: LogView) -> Iterator[Times]:
    """Yield the times of a table, and those of lines, as far as no table tells who waits."""
    table = read_last_table(view)
    yield table
    if not any(map(is_wait, table)):
        yield _read_lines(view)


def list_slow(view: LogView, times: Times) -> dict[int, tuple[str, LogEvent, float, float]]:
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
    if several and event.rank >= 0 and (first := _FIRST.match(text)):
        several = [(event.rank, first[1], first[2] or ""), *several]
    if listed := _LIST.search(text):
        several = [(rank, value, "") for rank, value in enumerate(listed[1].split(","))]
    if paired := _PAIRED.search(text):
        several = [(int(rank), value, "") for rank, value in _PAIR.findall(paired[1])]
    phase = _PHASE.search(text)
    if phase and len(several) >= _LEAST_RANKS:
        for rank, value, unit in several:
            if rank <= MAX_RANK and value.strip().replace(".", "", 1).isdecimal():
                yield phase[1], rank, float(value) * _MS.get(unit, 1.0)
        return
    if parts := _split_ranks(event):
        for rank, part in parts:
            yield from _read_phases(part, rank)
        return
    said = _SAID.search(text)
    rank = event.rank if event.rank >= 0 or said is None else int(said[1])
    if 0 <= rank <= MAX_RANK:
        yield from _read_phases(text, rank)


def _read_phases(text: str, rank: int) -> Iterator[tuple[str, int, float]]:
    for name, one, unit, other, its_unit in _TIME.findall(text):
        yield name, rank, float(one or other) * _MS.get(unit or its_unit, 1.0)


def _split_ranks(event: LogEvent) -> list[tuple[int, str]]:
    """Return what a line tells of each of several ranks, which stand one behind the other."""
    begins = list(_BEGIN.finditer(event.text))
    ends = [*(match.start() for match in begins[1:]), len(event.text)]
    parts = [
        (int(match[1]), event.text[match.end() : end])
        for match, end in zip(begins, ends, strict=False)
    ]
    if begins and event.rank >= 0:  # the first one looked like a prefix
        parts.insert(0, (event.rank, event.text[: begins[0].start()]))
    told = [(rank, part) for rank, part in parts if _TIME.search(part) and rank <= MAX_RANK]
    ranks = {rank for rank, _ in told}
    return told if len(ranks) == len(told) >= _LEAST_RANKS else []


def _find_slow(
    phase: str, times: Mapping[int, float], *, is_felt: bool = False
) -> list[tuple[int, float]]:
    """Return the ranks that take longer for work of their own, with the median of all.

    Where a table tells that the others wait for them, less is enough, and of more ranks.
    """
    if not is_own(phase) or len(times) < _LEAST_RANKS:
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


def is_own(phase: str) -> bool:
    """Tell whether a phase is work that a rank does alone."""
    name = phase.lower()
    return any(word in name for word in _OWN) and not any(
        word in name for word in (*_SHARED, *_WAITS)
    )
