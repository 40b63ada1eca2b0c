"""P509 by the pace of two runs of one job, as somebody shows them side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_MAX_CHANGES = 3
_TWO = 2
# Runs of one job differ by a few percent from each other.
_SLOWER, _MUCH = 1.1, 1.25


def make_run_paces(view: LogView) -> Iterator[Case]:
    """Make the case of two named runs, of which one takes longer for steps of the same numbers."""
    rates: dict[tuple[str, str], dict[str, list[LogEvent]]] = {}
    for row in view.list_signatures("table.run_rate"):
        named = rates.setdefault((row.artifact, row.groups["name"]), {})
        named.setdefault(row.groups["run"], []).append(row)
    changes = list(view.list_signatures("note.changed"))
    for (artifact, name), runs in rates.items():
        if len(runs) != _TWO or len({_list_steps(rows) for rows in runs.values()}) > 1:
            continue
        fast, slow = sorted(runs, key=lambda run: _read(runs[run]), reverse=True)
        times = _read(runs[fast]) / _read(runs[slow])
        if times < _SLOWER:
            continue
        told = [one for one in changes if one.artifact == artifact]
        yield _make_case(name, (runs[fast], runs[slow]), times, told)
        return


def _make_case(
    name: str, runs: tuple[list[LogEvent], list[LogEvent]], times: float, changes: list[LogEvent]
) -> Case:
    fast, slow = (rows[-1] for rows in runs)
    what = "; ".join(one.text for one in changes[:_MAX_CHANGES])
    return Case(
        code=codes.REGRESSION,
        summary=f"a step of {slow.groups['run']} takes {times:.2f} times as long as one of "
        f"{fast.groups['run']} ({name}: {slow.groups['told']} and {fast.groups['told']} at step "
        f"{fast.groups['step']})" + (f"; between them changed: {what:.200}" if what else ""),
        tier=NOTE,
        lines=(fast, slow, *changes)[:_MAX_LINES],
        confidence=Confidence.LIKELY if times >= _MUCH else Confidence.POSSIBLE,
        details={"runs": [fast.groups["run"], slow.groups["run"]], "times": round(times, 3)},
        remedies=("change one thing at a time back, and compare the same step again",),
    )


def _list_steps(rows: Sequence[LogEvent]) -> tuple[str, ...]:
    return tuple(sorted({row.groups["step"] for row in rows}))


def _read(rows: Sequence[LogEvent]) -> float:
    return median(float(row.groups["rate"]) for row in rows)
