"""S305 and H118 by the times of steps: those behind a save take far longer than all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said
from whystuck.diagnose.logs.cases.slow_steps import SlowSteps, list_slow_steps
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# A step that is longer by less costs nobody much.
_LEAST_S = 5.0
# So much of the time goes to saves, where it is known.
_LEAST_SHARE = 0.05


def make_save_steps(view: LogView) -> Iterator[Case]:
    """Make the case of a loop that stands still while a checkpoint is saved.

    Each slow step has a save before it, and each save a slow step behind it. That one rank alone
    saves is told by a sentence, as most programs print no more than that they save.
    """
    if any(is_said(event) for event in view.list_signatures(*WAITS)):
        return
    for steps in list_slow_steps(view):
        saves = _find_saves(view, steps)
        if not saves or steps.slow_s < steps.usual_s + _LEAST_S or _is_little(steps):
            continue
        soles = [*view.list_signatures("table.sole_saver")]
        lines = (*saves[-1:], *steps.slow[-2:], *soles[:1])
        alone = "one rank alone saves, and the others wait for it" if soles else "all ranks wait"
        yield Case(
            code=codes.SERIAL_CHECKPOINT if soles else codes.CHECKPOINT_SLOW,
            summary=f"steps in which a checkpoint is saved take {steps.slow_s:.0f} s, others "
            f"{steps.usual_s:.3g} s: {alone}",
            tier=NOTE,
            lines=lines[:_MAX_LINES],
            time=find_time(lines),
            details={"longest_s": steps.slow_s},
        )
        return


def _find_saves(view: LogView, steps: SlowSteps) -> list[LogEvent]:
    """Return the saves, each of which has a slow step next; none where others are slow, too."""
    saves = [
        event
        for event in view.list_signatures("table.saving")
        if event.artifact == steps.slow[0].artifact and is_said(event)
    ]
    slow = {event.row for event in steps.slow}
    rows = sorted({event.row for event in (*steps.slow, *steps.usual)})
    behind = [_find_next(rows, event.row) for event in saves]
    # Behind the last save, nothing may be shown.
    known = [row for row in behind if row]
    return saves if known and set(known) == slow else []


def _find_next(rows: Sequence[int], row: int) -> int:
    return next((one for one in rows if one > row), 0)


def _is_little(steps: SlowSteps) -> bool:
    """Tell whether saves take little of the time, by the numbers of the slow steps."""
    spent = steps.distance * steps.usual_s
    return bool(spent) and steps.slow_s < _LEAST_SHARE * (spent + steps.slow_s)
