"""H109 by what ranks print: each sends first, or each receives first, and waits for the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import find_time, place_exceptions
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MAX_LINES = 6
_C10D = "distributed_c10d.py"
_KINDS = {"send", "recv"}
_PEER = re.compile(r"\b(?:dst|src|dest|source|peer)\s?=\s?([^,()]{1,40}(?:\([^()]{0,40}\))?)")
_LAST_ARGUMENT = re.compile(r",\s?([^,()=]{1,40})\)?\s*$")


@dataclass(frozen=True)
class _Half:
    """The half of a transfer that a rank waits in, and what says so."""

    kind: str
    event: LogEvent | None = None
    exception: PythonException | None = None


def make_transfer_rings(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that all send, or all receive, and so wait for each other."""
    halves = _list_halves(view)
    kinds = {half.kind for half in halves.values()}
    if len(halves) < _PAIR or len(kinds) != 1:
        return
    (kind,) = kinds
    is_whole = set(halves) == set(view.ranks)
    calls = list_transfer_calls(view)
    if not (is_whole or makes_half_first(calls, kind)):
        return
    ranks = tuple(sorted(halves))
    events = tuple(half.event for half in halves.values() if half.event is not None)
    raised = tuple(half.exception for half in halves.values() if half.exception is not None)
    who = "both wait" if len(ranks) == _PAIR else "all wait"
    # Where one of several left out a send, all of them wait in a receive in the end.
    is_clear = kind == "send" or len(ranks) == _PAIR or bool(calls)
    yield Case(
        code=codes.P2P_CYCLE,
        summary=f"{name_ranks(ranks)} {who} in {kind}: each posts the other half only later",
        tier=PARTED,
        # Who is in the ring is told by `details`: nobody of them is more at fault than the others.
        ranks=ranks if is_whole and is_clear else (),
        victims=() if is_whole and is_clear else ranks,
        lines=(*calls[:2], *events)[:_MAX_LINES],
        exceptions=raised,
        where=place_exceptions(raised),
        time=find_time(events, raised),
        confidence=Confidence.LIKELY if is_clear else Confidence.POSSIBLE,
        details={"ring": list(ranks), "ops": dict.fromkeys(map(str, ranks), kind)},
    )


def _list_halves(view: LogView) -> Mapping[int, _Half]:
    """Return what ranks wait in, as watchdogs print it, and tracebacks show it of gloo."""
    found: dict[int, _Half] = {}
    for group in list_told_groups(view):
        if not group.is_of_members:
            found |= {rank: _Half(op.op, op.event) for rank, op in group.ops.items()}
    for item in view.exceptions:
        if item.rank >= 0 and is_timeout(item):
            calls = {frame.function for frame in item.frames if frame.file.endswith(_C10D)}
            kind = next(iter(calls & _KINDS), "")
            found.setdefault(item.rank, _Half(kind or "collective", None, item))
    return found if all(half.kind in _KINDS for half in found.values()) else {}


def list_transfer_calls(view: LogView) -> list[LogEvent]:
    """Return the calls of transfers in source that stands beside, in its order."""
    return sorted(view.list_signatures("source.transfer"), key=lambda one: (one.artifact, one.row))


def makes_half_first(calls: Sequence[LogEvent], kind: str) -> bool:
    """Tell whether source lets all make this half first, and the other half with the same peer.

    Whoever the peer is, it goes through the same lines. Where the order depends on something, both
    orders stand there.
    """
    told = [(call.groups["call"].lower(), _find_peer(call)) for call in calls]
    if len(told) != _PAIR or any(name not in _KINDS for name, _ in told):
        return False
    if any(call.count > 1 for call in calls):
        return False  # the same lines stand there again, maybe in the other order
    (first, peer), (second, other) = told
    return first == kind != second and peer == other != ""


def _find_peer(call: LogEvent) -> str:
    args = call.groups["args"]
    match = _PEER.search(args) or _LAST_ARGUMENT.search(args)
    return match[1].strip() if match else ""
