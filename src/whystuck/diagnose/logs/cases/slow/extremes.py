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
_HEAT = re.compile(r"MxTmp/Rnk: (\d{1,4})C/(\d{1,7})")


@dataclass(frozen=True)
class _Told:
    """The slowest rank of a line, how much it takes, and whether another measure says the same."""

    rank: int
    ratio: float
    is_confirmed: bool
    event: LogEvent


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
    ratio = max(one.ratio for one in mine)
    others = "is usual" if mine[0].event.signature.endswith(".slowest") else "the fastest"
    times = f" in {lines} reports" if lines > 1 else ""
    yield Case(
        code=codes.SLOW_RANK,
        summary=f"rank {rank} is the slowest{times}, and takes {ratio:.1f} times as long as "
        f"{others}: all others wait for it{_tell_clock(rank, mine[-1].event)}",
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
    for event in view.list_signatures("straggler.extremes", "straggler.ends"):
        told = event.groups
        rank = int(told.get("slow") or told.get("slow2") or -1)
        least = float(told.get("least") or told.get("least2") or 0)
        most = float(told.get("most") or told.get("most2") or 0)
        if 0 <= rank <= MAX_RANK and least > 0:
            is_weak = told.get("weak") == told.get("slow") and bool(told.get("weak"))
            low, high = float(told.get("low") or 0), float(told.get("high") or 0)
            yield _Told(rank, most / least, is_weak and high >= _SLOW * low, event)
