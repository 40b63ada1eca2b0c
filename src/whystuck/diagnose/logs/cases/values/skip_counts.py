"""V503 by the counts that loops print: how many steps a scaler has left out so far, and its scale.

One of both is enough: a count that grows with each step up to the end of a log, or a scale far
below 1 that never grows again. The search of a new scaler leaves out few steps, and ends above 1;
where steps are left out and the scale stays, it is as small as it may be, and the search is over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.cases.values.falling_scales import has_gone_on
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_LEAST_POINTS = 3
# Of the steps since then; a loss that is often not finite skips as many.
_ALL = 0.8
# From 2^32, the highest default, the search of a new scaler leaves out 32 steps, and few follow.
_SEARCHED = 42
# No search ends below 1: the scale makes gradients smaller there, and these still overflow.
_LEAST_SCALE = 1.0
# Of losses that are summed over many tokens, a scale a little below 1 is well.
_LOW_SCALE = 1e-3
_NUMBER = r"(\d{1,12}(?:\.\d{1,15})?(?:[eE][-+]?\d{1,3})?)(?![\w.])"
_SCALE = re.compile(rf"\b(?:(?:loss|grad|amp|scaler)[ _])?scale['\"]?[ :=]{{1,4}}['\"]?{_NUMBER}")
_OF = re.compile(
    r"\bskipped(?:[ _](?:steps?|iter(?:ation)?s?|updates?|batches))?['\"]?[ :=]{1,4}"
    r"(\d{1,12})(?: ?/ ?| (?:out )?of )(\d{1,12})\b",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"\bskipped(?:[ _](?:steps?|iter(?:ation)?s?|updates?|batches))?['\"]?[ :=]{1,4}(\d{1,12})\b",
    re.IGNORECASE,
)
# Megatron counts those since the line before.
_SINCE = re.compile(r"\bnumber of skipped iterations: {1,4}(\d{1,9})\b")
# A loop that tells of each step whether it was made.
_NOT_MADE = re.compile(r"\b(?:stepped(?:=|: ?| )False|skipped(?:=|: ?| )True)\b")
# So many steps in a row are not left out at one scale that can be lowered: scalers wait for one or
# two more at most.
_AT_FLOOR = 4
_STEP = re.compile(
    r"\b(?:global_)?(?:step|iteration|iter|it|update)s?['\"]?[ :=/]{1,12}(\d{1,12})\b"
)
_NEXT_RUN = "whystuck run --inspect finite -- COMMAND   # names the rank and the op where it begins"


@dataclass(frozen=True)
class _Point:
    """What a line tells: steps so far, those that were left out, and the scale."""

    event: LogEvent
    step: int | None
    skipped: int | None
    scale: float | None


def make_counted(view: LogView) -> Iterator[Case]:
    """Make the case of a job whose steps are all left out up to the end of its log."""
    names = ("scaler.progress", "scaler.counted")
    events = [event for event in view.list_signatures(*names) if is_said(event)]
    events.sort(key=lambda event: (event.artifact, event.rank, event.row))
    for _, told in groupby(events, key=lambda event: (event.artifact, event.rank)):
        points = _read_points(list(told))
        is_counted = sum(one.step is not None and one.skipped is not None for one in points)
        run = _find_run(points) if is_counted >= _LEAST_POINTS else _find_low(points)
        if run and not has_gone_on(view, run[-1].event):
            yield _make_case(points, run)
            return


def _make_case(points: Sequence[_Point], run: Sequence[_Point]) -> Case:
    begin, end = run[0], run[-1]
    skipped = (end.skipped or 0) - (begin.skipped or 0)
    scales = [one.scale for one in points if one.scale is not None]
    parts = []
    if skipped and begin.step is not None and end.step is not None:
        parts.append(
            f"{skipped} of the {end.step - begin.step} steps since {begin.step} were left out"
        )
    if scales and scales[-1] < max(_LEAST_SCALE, *scales):
        parts.append(f"the scale of the loss fell from {max(scales):g} to {scales[-1]:g}")
    details = {"reason": "falling", "skipped": skipped}
    if scales:
        details |= {"scale_from": max(scales), "scale_to": scales[-1]}
    lines = [one.event for one in run]
    return Case(
        code=codes.UPDATES_SKIPPED,
        summary=f"{', and '.join(parts)}: gradients overflow in step after step, the parameters "
        "stay as they are; all ranks skip such steps together, and no rank is named",
        tier=NOTE,
        lines=(*lines[:1], *lines[-(_MAX_LINES - 1) :]) if len(lines) > 1 else tuple(lines),
        time=find_time(lines),
        details=details,
        remedies=(_NEXT_RUN,),
    )


def _read_points(events: Sequence[LogEvent]) -> list[_Point]:
    points: list[_Point] = []
    total = 0
    last: tuple[int, float] | None = None
    for event in events:
        text = event.text
        scale = _SCALE.search(text)
        step = _STEP.search(text)
        of, since, count = _OF.search(text), _SINCE.search(text), _COUNT.search(text)
        steps = int(of[2]) if of else int(step[1]) if step else None
        skipped: int | None = None
        if since:
            total += int(since[1]) * event.count
            skipped = total
        elif told := of or count:
            skipped = int(told[1])
        elif _NOT_MADE.search(text) and steps is not None and scale:
            now = steps, float(scale[1])
            total += _count_halvings(last, now) if last else 0
            skipped, last = total, now
        points.append(_Point(event, steps, skipped, float(scale[1]) if scale else None))
    return points


def _count_halvings(one: tuple[int, float], other: tuple[int, float]) -> int:
    """Return the number of steps between two, where the scale was halved in each, else 0.

    That an optimizer was not stepped alone says nothing: gradients may be added up over steps.
    """
    if not 0.0 < other[1] < one[1]:
        return 0
    steps = other[0] - one[0]
    return steps if steps > 0 and math.isclose(math.log2(one[1] / other[1]), steps) else 0


def _is_at_floor(run: Sequence[_Point]) -> bool:
    """Tell whether the last steps were left out at a scale that was not lowered for it."""
    earlier, later = run[-2:]
    skips = (later.skipped or 0) - (earlier.skipped or 0)
    return earlier.scale is not None and earlier.scale == later.scale and skips >= _AT_FLOOR


def _find_run(points: Sequence[_Point]) -> list[_Point]:
    """Return the last lines between which almost all steps were left out."""
    told = [one for one in points if one.step is not None and one.skipped is not None]
    run = told[-1:]
    for earlier, later in reversed([*pairwise(told)]):
        steps = (later.step or 0) - (earlier.step or 0)
        skips = (later.skipped or 0) - (earlier.skipped or 0)
        if steps <= 0 or not _ALL * steps <= skips <= steps:
            break
        run.insert(0, earlier)
    if len(run) < _LEAST_POINTS:
        return []
    skipped = (run[-1].skipped or 0) - (run[0].skipped or 0)
    last = run[-1].scale
    is_low = last is not None and last < _LEAST_SCALE
    is_over = (is_low and skipped >= _LEAST_POINTS) or _is_at_floor(run)
    return run if skipped > _SEARCHED or is_over else []


def _find_low(points: Sequence[_Point]) -> list[_Point]:
    """Return the last lines with a scale below 1, where it fell to nothing and did not grow.

    Lines with a scale that is usual are not searched for: each step of a job that is well has one.
    """
    told = [one for one in points if one.scale is not None]
    run = told[-1:]
    for earlier, later in reversed([*pairwise(told)]):
        if (earlier.scale or 0.0) < (later.scale or 0.0) or (earlier.scale or 0.0) >= _LEAST_SCALE:
            break
        run.insert(0, earlier)
    is_low = bool(run) and (run[-1].scale or 0.0) < _LOW_SCALE
    return run if is_low and len(run) >= _LEAST_POINTS else []
