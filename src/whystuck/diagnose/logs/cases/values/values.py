"""V502 not-finite as jobs print it: a loss or a norm that is no number, and stays so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.cases.values.falling_scales import make_falling
from whystuck.diagnose.logs.cases.values.first_values import find_first
from whystuck.diagnose.logs.cases.values.skip_counts import make_counted
from whystuck.diagnose.logs.story import NOTE, OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_NAN = re.compile(r"\bnan\b", re.IGNORECASE)
_STOPS = re.compile(
    r"\b(?:stopp?(?:ing|ed|s)?|abort\w*|exit\w*|rais\w*|terminat\w*|quit\w*)\b", re.IGNORECASE
)
# A metric of no samples is none, in jobs that are well.
_OF_CHECK = re.compile(r"(?:eval|val|valid|validation|test)[_/. ]?(?:loss|norm)", re.IGNORECASE)
# A part of a loss, or of a batch, that the job leaves out by itself.
_LEFT_OUT = re.compile(r"\b(?:ignored|ignoring|handled|masked)\b", re.IGNORECASE)
# One line alone may be of a step that was skipped.
_LEAST, _SURE = 2, 3
_MAX_LINES = 6
# What a rank found in values of its own, before ranks added them up.
_LOCAL = re.compile(r"\blocal\b")
# The last line of a traceback, which may stand alone; and who raised it, in the message.
_RAISED = re.compile(
    r"^\s{0,8}(?:[\w.@\[-]{1,60}[:\]]{1,2} ?)?(?:\w{1,60}\.){0,6}\w{0,60}(?:Error|Exception): "
)
_NAMED = re.compile(r"\b[Rr]ank (\d{1,7})(?:: |, (?:node|device) )")
# Values of several ranks in one line: `r3 loss 2.1 | r4 loss nan`, `rank 3: 0.7, rank 4: inf`.
_CELL = re.compile(
    r"(?<!\w)(?:rank|rk?)[ =:#_]?(\d{1,6})[ =:]{1,3}(?:[a-z][\w/]{0,20}[ =:]{1,2})?"
    r"([-+]?(?:nan|inf|\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?))\b",
    re.IGNORECASE,
)
# How a program says that it gives up for such a value, which it need not name.
_GIVES_UP = re.compile(r"\b(?:nan|inf|finite|diverg\w{1,4}|explod\w{1,4})\b", re.IGNORECASE)
_NEXT_RUN = (
    "whystuck run --inspect finite -- COMMAND   # names the rank, the op and the step where it "
    "begins"
)


def make_not_finite(view: LogView) -> Iterator[Case]:
    """Make the case of losses that are no numbers to the end of the logs."""
    events = [
        event
        for event in view.list_signatures("py.nan")
        if is_said(event) and not _OF_CHECK.search(event.text) and not _LEFT_OUT.search(event.text)
    ]
    exceptions = find_exceptions(view, events) or _find_checks(view, events)
    stops = [one for one in events if _STOPS.search(one.text) or _RAISED.match(one.text)]
    count = sum(event.count for event in events)
    if not (exceptions or stops or count >= _LEAST):
        return
    ranks, others = _choose(view, events)
    if not ranks and len(raising := _list_local(events, exceptions)) == 1:
        ranks = raising
    has_nan = any(_NAN.search(event.text) for event in events)
    is_end = bool(exceptions or stops)
    is_sure = has_nan and (is_end or count >= _SURE)
    who = name_ranks(ranks) if ranks else "the job"
    beside = f", while {name_ranks(others)} printed finite ones" if others else ""
    tail = "; the job stopped for it" if is_end else ""
    yield Case(
        code=codes.NOT_FINITE,
        summary=f"{who} printed a loss or norm that is {'NaN' if has_nan else 'Inf'}{beside}{tail}",
        # What goes on with such values ends by something else.
        tier=OWN if is_end else NOTE,
        ranks=ranks,
        victims=others if is_end else (),
        lines=tuple(stops + [event for event in events if event not in stops])[:_MAX_LINES],
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events, exceptions),
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        details={"lines": count},
        remedies=(_NEXT_RUN,),
        scope=frozenset(ranks),
    )


def _choose(view: LogView, events: Sequence[LogEvent]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the one rank that printed them, where others show that they do not have them.

    Many jobs print the loss of all by one rank. Where a line has those of several ranks, the first
    one in which they differ tells: the next step gives what one rank computed to all.
    """
    for event in sorted(events, key=lambda event: (event.artifact, event.row)):
        cells = {int(match[1]): match[2].lower() for match in _CELL.finditer(event.text)}
        odd = {rank for rank, value in cells.items() if "n" in value}
        if odd and len(odd) < len(cells):
            return tuple(sorted(odd)), tuple(sorted(cells.keys() - odd))
    finite = frozenset[int]().union(*(file.loss_ranks for file in view.files))
    odd_first, rest = find_first(events, finite)
    if odd_first:
        return odd_first, rest
    ranks = list_ranks(events)
    others = tuple(sorted(finite - set(ranks)))
    return (ranks, others) if len(ranks) == 1 and others else ((), ())


def _list_local(
    events: Sequence[LogEvent], exceptions: Sequence[PythonException]
) -> tuple[int, ...]:
    """List the ranks that raised for what they found in values of their own.

    A message that names its rank tells it: a label may be lost, or be that of a host.
    """
    told = [(item.rank, item.message) for item in exceptions]
    told += [(event.rank, event.text) for event in events if _RAISED.match(event.text)]
    found = set[int]()
    for rank, text in told:
        if _LOCAL.search(text):
            named = _NAMED.search(text)
            found.add(int(named[1]) if named else rank)
    return tuple(sorted(found - {-1}))


def _find_checks(view: LogView, events: Sequence[LogEvent]) -> tuple[PythonException, ...]:
    """Return what a program raised below such values as its own check of them."""
    first: dict[str, int] = {}
    for event in events:
        first[event.artifact] = min(event.row, first.get(event.artifact, event.row))
    return tuple(
        item
        for item in view.exceptions
        if item.row > first.get(item.artifact, item.row) and _GIVES_UP.search(item.message)
    )


def make_skipped(view: LogView) -> Iterator[Case]:
    """Make the case of a scaler that gave up: each step overflowed at the smallest scale."""
    events = [event for event in view.list_signatures("scaler.floor") if is_said(event)]
    if not events:
        falling = list(make_falling(view))
        yield from falling or make_counted(view)
        return
    exceptions = find_exceptions(view, events)
    yield Case(
        code=codes.UPDATES_SKIPPED,
        summary="gradients overflowed until the scale of the loss could not be lowered any more: "
        "all ranks skip such steps together, and no rank is named",
        tier=OWN,
        lines=tuple(events[:_MAX_LINES]),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events, exceptions),
        details={"reason": "falling"},
        remedies=(_NEXT_RUN,),
        scope=view.ranks,
    )
