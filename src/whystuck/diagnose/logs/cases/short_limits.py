"""H125 by what an operation took each time before: it takes ever longer, up to its time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent

_TIER = WAIT - 1
_MAX_LINES = 6
# The last time, as a part of the limit; and where nothing shows that it began once more.
_NEAR, _NEARER = 0.7, 0.85
# It grows: each time is hardly shorter than the one before, and the last is longer than the first.
_HARDLY, _GROWN = 0.98, 1.08
# Times that are as near as this to the limit may have grown less.
_CLOSE, _GROWN_CLOSE = 0.95, 1.03
# The next one, as those before grew, reaches this part of the limit.
_REACHED = 0.97
# What took longer than the limit was over soon after it.
_A_LITTLE = 1.5
_LEAST_TIMES = 3
_MS = 1000.0
_SENDS = re.compile(
    r"(?i)broadcast|gather|reduc|scatter|all_?to_?all|send|recv|sync|push|pull|transfer|exchange"
    r"|gloo|nccl|collective|barrier"
)


def make_short_limits(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that gave up on what was not over yet, as it takes longer each time.

    The times of one operation grow towards the limit, and the next one would be beyond it. That it
    is the one which ranks waited for is likely where it began and did not end, else possible.
    """
    waits = [
        (event, int(event.groups["ms"]) / _MS)
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("ms") or "").isdecimal()
    ]
    if not waits:
        return
    limit = min(seconds for _, seconds in waits)
    events = [event for event, _ in waits]
    for row in view.list_signatures("table.durations"):
        times = [float(one) for one in row.groups["times"].split()]
        if outlasts(times, limit) and _stands_behind(row, events):
            yield _make_outlasted(row, times, limit, events, find_exceptions(view, events))
            return
        is_begun = bool(row.groups["begun"])
        least = _NEAR if is_begun else _NEARER
        if not is_begun and not _SENDS.search(row.groups["what"]):
            continue
        if grows_to(times, limit, least):
            yield _make_case(view, row, times, limit, events)
            return


def grows_to(times: Sequence[float], limit: float, least: float) -> bool:
    """Tell whether times grow, are near a limit, and the next one would be beyond it."""
    if len(times) < _LEAST_TIMES or not least * limit <= times[-1] < limit:
        return False
    is_steady = all(later >= _HARDLY * earlier for earlier, later in pairwise(times))
    more = (times[-1] - times[0]) / (len(times) - 1)
    grown = _GROWN_CLOSE if times[-1] >= _CLOSE * limit else _GROWN
    is_grown = times[-1] >= grown * times[0] and max(times) == times[-1]
    return is_steady and is_grown and times[-1] + more >= _REACHED * limit


def outlasts(times: Sequence[float], limit: float) -> bool:
    """Tell whether what came near to a limit each time took a little longer than it at last."""
    if len(times) < _LEAST_TIMES:
        return False
    *before, last = times
    return _NEAR * limit <= max(before) < limit <= last < _A_LITTLE * limit


def _stands_behind(row: LogEvent, waits: Sequence[LogEvent]) -> bool:
    """Tell whether a time was printed after others gave up: so it was over, and nothing stuck."""
    is_waiting = row.groups["own"] in {str(one.rank) for one in waits}
    rows = [one.row for one in waits if one.artifact == row.artifact]
    return bool(rows) and min(rows) < row.row and not is_waiting


def _make_outlasted(
    row: LogEvent,
    times: Sequence[float],
    limit: float,
    events: list[LogEvent],
    exceptions: tuple[PythonException, ...],
) -> Case:
    *before, last = times
    who = f"rank {row.groups['own']}" if row.groups["own"] else "a rank"
    return Case(
        code=codes.TIMEOUT_TOO_SHORT,
        summary=f"the limit of {limit:g} s is too short: {row.groups['what']} of {who} took up to "
        f"{max(before):g} s before and {last:g} s the last time, and was done after others gave up",
        tier=_TIER,
        victims=list_ranks(events),
        lines=(row, *events)[:_MAX_LINES],
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events),
        confidence=Confidence.LIKELY,
        details={"group": "", "sequence": -1, "op": row.groups["what"], "late_ranks": []},
    )


def _make_case(
    view: LogView, row: LogEvent, times: Sequence[float], limit: float, events: list[LogEvent]
) -> Case:
    is_begun = bool(row.groups["begun"])
    longer = float(row.groups["longer"] or 0)
    is_shown = limit <= longer < _A_LITTLE * limit
    exceptions = find_exceptions(view, events)
    tail = f"; it takes {longer:g} s where the limit is longer" if is_shown else ""
    return Case(
        code=codes.TIMEOUT_TOO_SHORT,
        summary=f"the limit of {limit:g} s {'is' if is_begun or is_shown else 'may be'} too short: "
        f"{row.groups['what']} took {times[0]:g} to {times[-1]:g} s, longer each time, and "
        f"{'was not over when' if is_begun else 'the next one would take longer than'} "
        f"{'the limit ended the wait' if is_begun else 'the limit'}{tail}",
        tier=_TIER,
        victims=list_ranks(events),
        lines=(row, *events)[:_MAX_LINES],
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events),
        confidence=Confidence.LIKELY if is_begun or is_shown else Confidence.POSSIBLE,
        details={"group": "", "sequence": -1, "op": row.groups["what"], "late_ranks": []},
    )
