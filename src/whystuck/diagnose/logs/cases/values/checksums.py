"""V501 by sums and norms that ranks print: replicas that should be alike are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_STEP = re.compile(r"\b(?:step|iteration|iter|epoch)[ =:]{1,3}(\d{1,12})\b", re.IGNORECASE)
# One against one may be either; of shards, each has its own sum.
_LEAST = 3
_TABLE = "table "
# By so much of them, sums of 32 and of 64 bits may differ by the order of what is added.
_ORDER_32, _ORDER_64, _DIGITS_32 = 1e-6, 1e-9, 9
_Sums = dict[int, tuple[str, LogEvent]]
_MEMBERS = r"(?:workers|ranks|replicas|processes|devices|GPUs|nodes)"
# A check of the job, or of its framework, that all ranks have the same.
_SAME = r"(?:same|identical|equal|consistent|in sync)"
_COMPARED = re.compile(
    r"\b(?:gradients?|grad[ _]norms?|param(?:eter)?s?|weights?|model|checksums?|hash(?:es)?|state)"
    r"\b[^.;]{0,60}\b(?:inconsistent|diverged?|differ(?:s|ent)?|mismatch\w{0,4}|out of sync"
    rf"|not match(?:ing)?|n't match|not (?:the )?{_SAME})\b[^.;]{{0,20}}"
    # On different devices is where parameters lie, and not what is in them.
    rf"\b(?:across|between|among|on (?:all|other|the other)) (?:(?:the|all|DP|data[- ]parallel) )"
    rf"{{0,2}}{_MEMBERS}\b",
    re.IGNORECASE,
)


def make_checksums(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks whose sum differs from that of all others at one step.

    Whoever compares them and raises has found it, and has not therefore done it.
    """
    found = tuple(item for item in view.exceptions if _COMPARED.search(item.message))
    lines = view.list_events(codes.PYTHON_EXCEPTION, "cause")
    raised = tuple(event for event in lines if _COMPARED.search(event.text) and is_said(event))
    for name, told in _list_told(view).items():
        sums = Counter(value for value, _ in told.values())
        common, most = sums.most_common(1)[0]
        odd = sorted(rank for rank, (value, _) in told.items() if value != common)
        is_empty = not common.strip("0x.")  # ranks that have none of it
        if len(told) < _LEAST or not odd or 2 * most <= len(told) or is_empty:
            continue
        event = told[odd[0]][1]
        step = event.groups.get("step") or _find_step(event) if name.startswith(_TABLE) else name
        at = f" at step {step}" if step else ""
        is_norm = "grad" in told[odd[0]][1].groups.get("what", "")
        what = "norms of gradients" if is_norm else "weights"
        yield Case(
            code=codes.WEIGHTS_DIVERGED,
            summary=f"{name_ranks(odd)} {'has' if len(odd) == 1 else 'have'} other {what} than "
            f"the other ranks{at}, as the values tell that ranks print",
            # The check of a job that then raises is told by this.
            tier=OWN - 1,
            ranks=tuple(odd),
            victims=tuple(rank for rank in told if rank not in odd),
            lines=tuple(told[rank][1] for rank in [*odd, *sorted(set(told) - set(odd))])[
                :_MAX_LINES
            ],
            exceptions=found,
            time=find_time((), found),
            confidence=Confidence.LIKELY,
            details={"step": int(step or 0), "tensors": []},
            scope=view.ranks,
            entails=raised,
        )
        return
    if found or raised:
        yield _tell_check(view, raised, found)


def _tell_check(
    view: LogView, raised: tuple[LogEvent, ...], found: tuple[PythonException, ...]
) -> Case:
    """Tell of a check of the job that found a difference and does not say whose it is."""
    return Case(
        code=codes.WEIGHTS_DIVERGED,
        summary="a check found that ranks do not have the same weights or gradients; whose "
        "differ, it does not tell",
        tier=OWN - 1,
        lines=raised[:_MAX_LINES],
        exceptions=found,
        where=place_exceptions(found[:1]),
        time=find_time(raised, found),
        details={"step": 0, "tensors": []},
        scope=view.ranks,
        entails=raised,
    )


def _find_step(event: LogEvent) -> str:
    match = _STEP.search(event.text)
    return match[1] if match else ""


def _list_told(view: LogView) -> dict[str, _Sums]:
    """Return the sum of each rank, by the step that a line names, or the table it is in."""
    found: dict[str, _Sums] = {}
    for event in view.list_signatures("told.checksum"):
        rank = int(event.groups.get("rank") or event.groups.get("rank2") or -1)
        value = event.groups.get("sum") or event.groups.get("sum2") or ""
        match = _STEP.search(event.text)
        if 0 <= rank <= MAX_RANK:
            found.setdefault(match[1] if match else "", {})[rank] = value, event
    for event in view.list_signatures("table.value"):
        told = found.setdefault(f"{_TABLE}{event.groups['table']}", {})
        told[int(event.groups["own"])] = event.groups["sum"], event
    return {
        name: _round_all(told) if name.startswith(_TABLE) else told for name, told in found.items()
    }


def _round_all(told: _Sums) -> _Sums:
    """Leave out the digits of sums that tell nothing.

    Where most ranks have the same digits to the last one, the others have added up other numbers;
    what they differ by in another order is far less.
    """
    most = Counter(value for value, _ in told.values()).most_common(1)[0]
    is_exact = len(told) >= _LEAST and 2 * most[1] > len(told) and most[1] >= _LEAST
    if not is_exact:
        return {rank: (_round(value), event) for rank, (value, event) in told.items()}
    return {
        rank: (most[0] if _is_near(value, most[0]) else value, event)
        for rank, (value, event) in told.items()
    }


def _is_near(one: str, other: str) -> bool:
    """Tell whether sums differ by no more than the order in which numbers are added."""
    if one == other:
        return True
    if "." not in one or "." not in other:
        return False  # hashes, or sums of integers
    try:
        first, second = float(one), float(other)
    except ValueError:
        return False
    digits = sum(char.isdigit() for char in other)
    # A sum of 32 bits, printed with few digits, is less exact than one of 64.
    slack = _ORDER_32 if digits <= _DIGITS_32 else _ORDER_64
    return abs(first - second) <= slack * max(abs(first), abs(second))


def _round(value: str) -> str:
    """Leave out what ranks differ by when they add up the same numbers in another order."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value
