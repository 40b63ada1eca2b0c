"""V503 as scalers print it: step after step is left out, and the scale of the loss falls on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# So many steps in a row are left out where no scale helps; spikes of a loss take fewer.
_LEAST = 6
# Below this, the scale makes gradients smaller instead of larger.
_LEAST_SCALE = 1.0
# A new scaler begins high and searches its scale: from 2^32, the highest default, it takes up to 32
# skips, and ten steps behind them may be skipped, too.
_SEARCHED = 42
# Between the lines of two steps in a row stand so few others, and times are as regular.
_NEAR_ROWS = 4
_UNEVEN, _SLACK_NS = 4, 1_000_000_000
_NEXT_RUN = "whystuck run --inspect finite -- COMMAND   # names the rank and the op where it begins"


@dataclass(frozen=True)
class _Skip:
    """A step that was left out, and the scale before and after it; the former may not be told."""

    event: LogEvent
    before: float | None
    after: float


def make_falling(view: LogView) -> Iterator[Case]:
    """Make the case of a scale that fell with each step up to the end of a log.

    The search of a new scaler looks alike. It is over where the steps are counted far beyond it,
    and no search goes below 1. A job that goes on prints the same, and is as wrong: what whystuck
    counts of its updates goes before it.
    """
    events = [event for event in view.list_signatures("scaler.skipped") if is_said(event)]
    skips = [skip for event in events if (skip := _read(event)) is not None]
    for _, told in groupby(skips, key=lambda skip: (skip.event.artifact, skip.event.rank)):
        run = _find_last_run(list(told))
        is_floor = _is_at_floor(run)
        if (len(run) < _LEAST and not is_floor) or has_gone_on(view, run[-1].event):
            continue
        counted = _find_counted(view, run)
        if run[-1].after >= _LEAST_SCALE and counted is None and not is_floor:
            continue
        lines = [skip.event for skip in run]
        tail = ", the least that it may be" if is_floor else " and falls on"
        begin = run[0].before or run[0].after
        count = sum(line.count for line in lines)
        yield Case(
            code=codes.UPDATES_SKIPPED,
            summary=f"the last {count} steps that the scaler told of overflowed, and were left out:"
            f" the scale of the loss {_describe(begin, run[-1].after, tail)}; all ranks skip such "
            "steps together, and no rank is named",
            # The job goes on with parameters that stay as they are.
            tier=NOTE,
            lines=(*lines[:1], *lines[-(_MAX_LINES - 2) :], *([counted] if counted else [])),
            time=find_time(lines),
            details={
                "reason": "falling",
                "skipped": count,
                "scale_from": begin,
                "scale_to": run[-1].after,
            },
            remedies=(_NEXT_RUN,),
        )
        return


def _describe(begin: float, end: float, tail: str) -> str:
    return (f"is {end:g}" if begin == end else f"fell from {begin:g} to {end:g}") + tail


def _is_at_floor(run: Sequence[_Skip]) -> bool:
    """Tell whether steps were left out again and again at a scale that could not be lowered."""
    floor = [skip for skip in run if skip.before == skip.after <= _LEAST_SCALE]
    return sum(skip.event.count for skip in floor) > 1 and floor[-1] is run[-1]


def _read(event: LogEvent) -> _Skip | None:
    after = _read_number(event.groups.get("to"))
    return None if after is None else _Skip(event, _read_number(event.groups.get("from")), after)


def _read_number(text: str | None) -> float | None:
    try:
        return float((text or "").rstrip(".-+e"))
    except ValueError:
        return None


def _find_last_run(skips: Sequence[_Skip]) -> list[_Skip]:
    """Return the last skips that followed each other step by step, each to a lower scale."""
    run: list[_Skip] = []
    for skip in skips:
        if run and not _follows(run[-1], skip):
            run = []
        run.append(skip)
    times = [skip.event.time.ns for skip in run if skip.event.time is not None]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # More lines than are kept stand before the last one.
    gaps = gaps[:-1] if run and run[-1].event.count > 1 else gaps
    is_regular = not gaps or 0 <= max(gaps) <= _UNEVEN * min(gaps) + _SLACK_NS
    return run if is_regular else []


def _follows(one: _Skip, other: _Skip) -> bool:
    """Tell whether a step was skipped right after another one, at the scale that it left."""
    is_near = 0 < other.event.row - one.event.row <= _NEAR_ROWS * other.event.count
    is_same = other.before is None or other.before == one.after or other.event.count > 1
    is_lower = other.after < one.after or one.after == other.after == other.before
    return is_near and is_same and is_lower and one.event.count == 1


def has_gone_on(view: LogView, last: LogEvent) -> bool:
    """Tell whether the log shows several steps behind the last one that was left out."""
    files = (file for file in view.files if file.artifact == last.artifact)
    return any(file.steps_since > last.row for file in files)


def _find_counted(view: LogView, run: Sequence[_Skip]) -> LogEvent | None:
    """Return the line that counts the steps of the job as too many for the search of a scale."""
    begin, end = run[0].event, run[-1].event
    for event in view.list_signatures("scaler.counted"):
        is_here = event.artifact == end.artifact and begin.row < event.row <= end.row + _NEAR_ROWS
        if is_here and int(event.groups["step"]) - len(run) > _SEARCHED:
            return event
    return None
