"""S301 by lines that tell the least and the most time of all ranks, and whose they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.slowest_lines import is_by_work, list_slowest
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK

_MAX_LINES = 6
# Who is slow takes this much longer than the fastest; somebody is always the last.
_SLOW = 1.25
# Of so many lines, one rank is the slowest in most: what changes is chance, or the work.
_MOST, _LEAST_LINES = 0.75, 3
_CLOCK = re.compile(r"MnClk/Rnk: (\d{1,6})MHz/(\d{1,7}) \| MxClk/Rnk: (\d{1,6})MHz")
_LOWEST = "straggler.lowest"
_LISTED = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)TF/(\d{1,7})")
_HEAT = re.compile(r"MxTmp/Rnk: (\d{1,4})C/(\d{1,7})")


@dataclass(frozen=True)
class _Told:
    """The slowest rank of a line, how much it takes, and whether another measure says the same.

    Attributes:
        rates: What it and the fastest compute in a second, where that tells and no time does.
    """

    rank: int
    ratio: float
    is_confirmed: bool
    event: LogEvent
    rates: str = ""


def make_extremes(view: LogView) -> Iterator[Case]:
    """Make the case of one rank that is the slowest again and again, by far."""
    told = [*_list_told(view)]
    wide = [one for one in told if one.ratio >= _SLOW]
    if not wide or any(view.list_signatures("straggler.named")):
        return
    (rank, count), *_ = Counter(one.rank for one in wide).most_common(1)
    mine = [one for one in wide if one.rank == rank]
    lines = sum(one.event.count for one in told)
    is_steady = count >= _MOST * len(told) and sum(one.event.count for one in mine) >= _LEAST_LINES
    is_confirmed = count == len(told) and all(one.is_confirmed for one in mine)
    if not (is_steady or is_confirmed):
        return
    worst = max(mine, key=lambda one: one.ratio)
    others = "is usual" if mine[0].event.signature.endswith(".slowest") else "the fastest"
    times = f" in {lines} reports" if lines > 1 else ""
    pace = worst.rates or f"takes {worst.ratio:.1f} times as long as {others}"
    yield Case(
        code=codes.SLOW_RANK,
        summary=f"rank {rank} is the slowest{times}, and {pace}: all others wait for it"
        f"{_tell_clock(rank, mine[-1].event)}",
        tier=NOTE,
        ranks=(rank,),
        victims=tuple(sorted(view.ranks - {rank})),
        lines=tuple(one.event for one in mine[-_MAX_LINES:]),
        time=find_time([one.event for one in mine]),
        confidence=Confidence.LIKELY,
        details={"phase": "", "clock_offset_ns": 0},
        remedies=(
            (
                f"on the host of rank {rank}: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`, and "
                "compare its clocks with those of other devices"
            ),
        ),
    )


def _tell_clock(rank: int, event: LogEvent) -> str:
    """Tell of the clock and the heat of the device of a rank, where they are the odd ones too."""
    clock, heat = _CLOCK.search(event.text), _HEAT.search(event.text)
    if clock is None or int(clock[2]) != rank or _SLOW * float(clock[1]) > float(clock[3]):
        return ""
    hot = f", at {heat[1]} C" if heat is not None and int(heat[2]) == rank else ""
    return f"; its device runs at {clock[1]} MHz{hot}, where others run at {clock[3]} MHz"


def _list_told(view: LogView) -> Iterator[_Told]:
    slowest = list_slowest(view)
    if not is_by_work(slowest):
        for one in slowest:
            yield _Told(one.rank, one.ms / one.usual_ms, is_confirmed=False, event=one.event)
    lists = [*view.list_signatures(_LOWEST)]
    lone = {one.rank for event in lists for one in _read_lowest(event)}
    ends = [*view.list_signatures("straggler.extremes", "straggler.ends")]
    for event in ends:
        told = _read_rates(event, lone, is_listed=bool(lists)) or _read_ends(event)
        if told is not None:
            yield told
    for event in () if ends else lists:
        yield from _read_lowest(event)


def _read_ends(event: LogEvent) -> _Told | None:
    """Read whose time is the longest."""
    told = event.groups
    rank = int(told.get("slow") or told.get("slow2") or -1)
    least = float(told.get("least") or told.get("least2") or 0)
    most = float(told.get("most") or told.get("most2") or 0)
    if not 0 <= rank <= MAX_RANK or least <= 0:
        return None
    is_weak = told.get("weak") == told.get("slow") and bool(told.get("weak"))
    low, high = float(told.get("low") or 0), float(told.get("high") or 0)
    return _Told(rank, most / least, is_weak and high >= _SLOW * low, event)


def _read_rates(event: LogEvent, lone: set[int], *, is_listed: bool) -> _Told | None:
    """Read who computes least, where times do not tell: in a collective all take as long.

    A list of those who compute least tells whether it is one rank that does, or one of many.
    """
    told = event.groups
    rank, low, high = (float(told.get(name) or 0) for name in ("weak", "low", "high"))
    is_even = float(told.get("most") or 0) < _SLOW * float(told.get("least") or 0)
    if not is_even or low <= 0 or high < _SLOW * low or rank > MAX_RANK:
        return None
    if is_listed and rank not in lone:
        return None
    clock = _CLOCK.search(event.text)
    is_slowed = (
        clock is not None and int(clock[2]) == rank and _SLOW * int(clock[1]) <= int(clock[3])
    )
    is_confirmed = rank in lone or is_slowed
    return _Told(int(rank), high / low, is_confirmed, event, _tell_rates(low, high))


def _read_lowest(event: LogEvent) -> Iterator[_Told]:
    """Read who computes far less than the next in a list of those who compute least."""
    listed = _LISTED.findall(event.groups["list"])
    (low, rank), (high, _) = listed[:2] if len(listed) > 1 else (("0", "0"), ("0", "0"))
    least, usual = float(low), float(high)
    if least > 0 and usual >= _SLOW * least and int(rank) <= MAX_RANK:
        yield _Told(
            int(rank),
            usual / least,
            is_confirmed=True,
            event=event,
            rates=_tell_rates(least, usual),
        )


def _tell_rates(low: float, high: float) -> str:
    return f"computes {low:.0f} TFLOP/s where others reach {high:.0f}"
