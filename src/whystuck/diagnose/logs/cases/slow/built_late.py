"""H117 by what a rank prepares for longer than others wait: an index of the data, or a bar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.algorithms.processes.growth import find_index_growth
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
)
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MS = 1000.0
_MAX_LINES = 6
_WHOLE = 100
_AFTER = re.compile(r"\bafter (\d{1,12}) ?ms\b")
# What has taken this share of a limit is what kept the ranks until it.
_LONG = 0.5
# Ranks that wait for the data have called few operations before.
_FIRST = 64
_PREPARE = "prepare the data before the job, or on all ranks, or behind a longer limit"
# What HCCL waits when it makes its links, where nothing tells another limit.
_HCCL_LIMIT_S = 120.0
_BEFORE = "build the indices once before the job, with one process, into a folder that all share"


def make_built_late(view: LogView) -> Iterator[Case]:
    """Make the case of indices of the data that were being built when others gave up, or looked."""
    yield from _make_given_up(view)
    yield from _make_growing(view)
    yield from _make_prepared(view)


def _make_prepared(view: LogView) -> Iterator[Case]:
    """Make the case of the rank at whose first collective all others gave up, and that prepares.

    NCCL is set up at the first collective, with an id that others wait to get of one rank. A bar of
    that rank which had taken half of the limit, or went on below, tells what it did instead.
    """
    waits = [one for one in view.list_signatures("nccl.unique_id") if is_said(one)]
    first = [one for one in waits if "default_pg" in one.text or "key '0'" in one.text]
    roots = {one.groups.get("root") or "" for one in waits}
    bars = [one for one in view.list_signatures("table.rank_bar") if str(one.rank) in roots]
    if len(roots) != 1 or len(bars) != 1 or not waits or len(first) < len(waits):
        return
    bar, ranks = bars[0], list_ranks(waits)
    is_open = int(bar.groups["pct"]) < _WHOLE and bar.rank not in ranks
    limits = [int(told[1]) / _MS for one in waits if (told := _AFTER.search(one.text))]
    is_long = bool(limits) and _count_seconds(bar.groups["took"]) >= _LONG * min(limits)
    is_later = all(_is_below(bar, (one.artifact, one.row)) for one in waits)
    failed = {one.rank for one in view.exceptions if not is_timeout(one)} | view.ended_ranks
    if not is_open or not (is_long or is_later) or bar.rank in failed:
        return
    yield Case(
        code=codes.SETUP_SLOW,
        summary=f"{name_ranks([bar.rank])} was still preparing ({bar.groups['pct']} % done after "
        f"{bar.groups['took']}) while {name_ranks(ranks) if ranks else 'others'} waited for its "
        "first collective until a time limit",
        tier=BUSY,
        ranks=(bar.rank,),
        victims=ranks,
        lines=(bar, *waits)[:_MAX_LINES],
        exceptions=find_exceptions(view, waits),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(_PREPARE, "raise the time limit: `init_process_group(timeout=...)`"),
    )


def _make_growing(view: LogView) -> Iterator[Case]:
    """Make the case of a rank that says it builds an index, whose file was seen to grow since."""
    begun = [
        event
        for event in view.list_signatures("progress.building")
        if is_said(event) and not event.is_past
    ]
    growth = find_index_growth(view.events)
    ranks = {int(event.groups["who"]) for event in begun}
    if growth is None or len(ranks) != 1:
        return
    place = growth.last.artifact, growth.last.row
    is_over = any(_is_below(one, place) for one in view.list_signatures("progress.built"))
    if is_over or _is_below(begun[-1], place):
        return
    rate = f" by {growth.mb_per_s} MB/s" if growth.mb_per_s else ""
    yield Case(
        code=codes.SETUP_SLOW,
        summary=f"{name_ranks(sorted(ranks))} builds an index of the data, as the log says, and "
        f"{growth.file} grew{rate} at each look: this goes on, and the others wait for it",
        tier=BUSY,
        ranks=tuple(ranks),
        lines=(begun[-1], growth.last),
        time=find_time(begun),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(_BEFORE,),
    )


def _make_given_up(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that gave up while indices of the data were being built.

    What was built after they gave up was under way when they did. All that was built one after the
    other took longer than their limit, so that the wait had to end there, whoever else was late.
    Where the next part begins only then, what came before it took most of the limit already.
    """
    waits = _list_waits(view)
    built = [event for event in view.list_signatures("progress.built") if not event.is_past]
    if not waits or not built:
        return
    limit = min(seconds for _, seconds in waits)
    events = [event for event, _ in waits]
    last = _find_begun(view, built[-1], events) or built[-1]
    own = [event for event in built if (event.artifact, event.rank) == (last.artifact, last.rank)]
    total = sum(_read_seconds(event) for event in own)
    is_late = any(_is_after(last, event) for event in events)
    least, more = (limit, "") if last is built[-1] else (_LONG * limit, " and went on below")
    if not is_late or total < least or (last.rank >= 0 and last.rank in list_ranks(events)):
        return
    owner = _find_builder(view, own[0], events)
    yield Case(
        code=codes.SETUP_SLOW,
        summary=f"ranks waited until a time limit of {limit:g} s while indices of the data were "
        f"built, which took {total:.0f} s{more}: the job was alive, and the limit was shorter "
        "than that",
        tier=BUSY,
        ranks=owner,
        victims=list_ranks(events),
        lines=(*own[-3:], *((last,) if last not in own else ()), *events)[:_MAX_LINES],
        exceptions=find_exceptions(view, events),
        time=find_time(events),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(
            "raise the time limit of the group: `init_process_group(timeout=timedelta(hours=2))`",
            _BEFORE,
        ),
    )


def _find_begun(view: LogView, built: LogEvent, waits: Sequence[LogEvent]) -> LogEvent | None:
    """Return the part of the same index that began after ranks gave up their first step.

    Ranks wait for an index in an operation of one number. Behind a restart, all begins anew.
    """
    begun = [
        one
        for one in view.list_signatures("progress.part_begun")
        if is_said(one) and _is_below(one, (built.artifact, built.row)) and one.rank == built.rank
    ]
    is_first = all(_is_barrier(one) for one in waits)
    if not begun or not is_first or not all(_is_below(begun[-1], _place(one)) for one in waits):
        return None
    heads = list(view.list_signatures("progress.building"))
    # Of lines that are alike, only the first one is kept.
    is_anew = any(one.count > 1 or _is_below(one, _place(built)) for one in heads)
    if is_anew or any(one.attempt != begun[-1].attempt for one in waits):
        return None
    return begun[-1]


def _is_barrier(wait: LogEvent) -> bool:
    """Return whether a rank waited in one of its first operations, which has one number or none."""
    op, seq = (wait.groups.get("op") or "").upper(), wait.groups.get("seq") or ""
    is_short = op == "BARRIER" or (op == "ALLREDUCE" and wait.groups.get("nin") == "1")
    return is_short and seq.isdecimal() and int(seq[:18]) <= _FIRST


def _find_builder(view: LogView, first: LogEvent, waits: Sequence[LogEvent]) -> tuple[int, ...]:
    """Return the one rank that says in the same log that it builds what was built, if it may."""
    heads = [
        one
        for one in view.list_signatures("progress.building")
        if is_said(one) and _is_below(first, _place(one))
    ]
    ranks = {int(one.groups["who"]) for one in heads}
    failed = {one.rank for one in view.exceptions if not is_timeout(one)} | view.ended_ranks
    is_one = len(ranks) == 1 and first.rank in {-1, *ranks}
    return tuple(ranks) if is_one and not ranks & (failed | set(list_ranks(waits))) else ()


def _read_seconds(built: LogEvent) -> float:
    return float(built.groups.get("sec") or built.groups["part_sec"])


def _place(event: LogEvent) -> tuple[str, int]:
    return event.artifact, event.row


def _list_waits(view: LogView) -> list[tuple[LogEvent, float]]:
    """Return the lines of those who gave up, and how many seconds each had waited."""
    waits = [
        (event, int(event.groups["ms"]) / _MS)
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("ms") or "").isdecimal()
    ]
    told = [float(one.groups["sec"]) for one in view.list_signatures("hccl.connect_limit")]
    links = [event for event in view.list_signatures("hccl.connect") if is_said(event)]
    return waits + [(event, max(told, default=_HCCL_LIMIT_S)) for event in links]


def _is_below(event: LogEvent, place: tuple[str, int]) -> bool:
    """Tell whether a line stands below a place of its log."""
    return event.artifact == place[0] and event.row > place[1]


def _is_after(built: LogEvent, wait: LogEvent) -> bool:
    """Tell whether something was built after a rank gave up, by their clocks or in one log."""
    if built.time and wait.time and built.time.clock == wait.time.clock:
        return built.time.ns > wait.time.ns
    return built.artifact == wait.artifact and built.row > wait.row


def _count_seconds(took: str) -> int:
    """Return the seconds of a time as bars of progress show it: `29:55`, `1:02:03`."""
    total = 0
    for part in took.split(":"):
        total = total * 60 + int(part or 0)
    return total
