"""Which function is compiled in the slow steps of a loop, and in none of the others."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

# A function has been compiled so often before: twice it may be, with fixed and with free sizes.
_LEAST_COMPILES = 3
# So many steps with and without a compile, and how much longer those with one take.
_LEAST_STEPS = 2
_LONGER, _LONGER_S = 3.0, 1.0


@dataclass(frozen=True)
class CompiledSteps:
    """The steps in which a function was compiled, and how long steps take, in seconds.

    Where it was compiled in all of them, ``usual_s`` is zero, and ``guard`` is what changes.
    """

    func: str
    place: str
    compiled_s: float
    usual_s: float
    lines: tuple[LogEvent, ...]
    guard: str = ""


def find_compiled_steps(view: LogView) -> CompiledSteps | None:
    """Return the function whose compiles make steps slow; None where steps do not tell.

    All steps in which it was compiled take longer than any other: it is the compiler that does.
    """
    functions: dict[tuple[str, str, str], list[LogEvent]] = {}
    usual: dict[str, list[float]] = {}
    for event in view.list_signatures("table.recompiled"):
        func, place = event.groups["func"], event.groups["place"]
        if func:
            functions.setdefault((event.artifact, func, place), []).append(event)
        else:
            usual.setdefault(event.artifact, []).append(_read(event))
    for (artifact, func, place), told in functions.items():
        others = usual.get(artifact, [])
        if not others and (guard := _find_changing(told)):
            return CompiledSteps(func, place, median(map(_read, told)), 0.0, tuple(told), guard)
        is_often = any(int(event.groups["count"]) >= _LEAST_COMPILES for event in told)
        steps = {event.groups["step"] for event in told}
        if not is_often or min(len(steps), len(others)) < _LEAST_STEPS:
            continue
        least = min(map(_read, told))
        if least >= max(_LONGER * max(others), max(others) + _LONGER_S):
            middle = median(map(_read, told))
            return CompiledSteps(func, place, middle, median(others), tuple(told))
    return None


def _find_changing(told: list[LogEvent]) -> str:
    """Return what a function is compiled for in every step: a guard whose value always changes."""
    steps = {int(event.groups["step"]): event for event in reversed(told)}
    shown = sorted(steps)
    first, last = steps[shown[0]].groups, steps[shown[-1]].groups
    compiles = int(last["count"]) - int(first["count"])
    values = {steps[one].groups["value"] for one in shown}
    is_each = len(shown) >= _LEAST_STEPS and compiles >= shown[-1] - shown[0]
    is_one = {steps[one].groups["guard"] for one in shown} == {last["guard"]}
    is_slow = min(map(_read, told)) >= _LONGER_S and int(last["count"]) >= _LEAST_COMPILES
    return last["guard"] if is_each and is_one and is_slow and len(values) == len(shown) else ""


def _read(event: LogEvent) -> float:
    return float(event.groups["s"])
