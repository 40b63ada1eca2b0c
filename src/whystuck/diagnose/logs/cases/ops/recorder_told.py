"""H102 and H105 to H108 as torchfrtrace tells them, which compares the calls of all ranks.

It compares each rank with the first one: where the first one alone differs, it names all others.
The stack that it prints is that of the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.call_records import Frame
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks, parse_ranks

_NAMED = re.compile(r"Culprit rank (\d{1,7}); Error type: ([A-Z_]{3,40})")
# A state that differs says who came further, not who is wrong.
_CODES = {
    "COLLECTIVE_TYPE_MISMATCH": codes.OP_MISMATCH,
    "SIZE_OR_SYNTAX_MISMATCH": codes.SHAPE_MISMATCH,
    "COLLECTIVE_DTYPE_MISMATCH": codes.DTYPE_MISMATCH,
}
_WORDS = {codes.OP_MISMATCH: "op", codes.SHAPE_MISMATCH: "shape", codes.DTYPE_MISMATCH: "type"}
# The last name of a line, with what it says of it; a line that ends elsewhere has been cut.
_LAST = re.compile(r"\d{1,7}; Error type: ([A-Z_]{3,40})(?:, (?>.*? does not match )[^'\n]*'.*')?")
_TYPES = re.compile(
    r"Expected collective type: '([\w:]{1,60})' does not match "
    r"found collective type: '([\w:]{1,60})'"
)
_BARRIER = "barrier"
# So far below what is said of a collective its stack stands.
_NEAR = 4
_STATES = {*_CODES, "COLLECTIVE_STATE_MISMATCH", "UNDECIDED"}


def make_recorder_told(view: LogView) -> Iterator[Case]:
    """Make the case of a collective that ranks called in different ways."""
    for event in view.list_signatures("frtrace.culprit", "frtrace.alltoall"):
        if not is_said(event):
            continue
        case = _make_named(view, event) if "Culprit" in event.text else _make_sums(event)
        if case is not None:
            yield case
            return


def _make_named(view: LogView, event: LogEvent) -> Case | None:
    by_code: dict[str, set[int]] = {}
    for match in _NAMED.finditer(event.text):
        if match[2] in _CODES:
            by_code.setdefault(_CODES[match[2]], set()).add(int(match[1]))
    if not by_code:
        return None
    code = min(by_code)
    named = frozenset().union(*by_code.values())
    ranks = _find_odd(named, _find_members(view, event)) if _is_whole(event.text) else []
    who = name_ranks(ranks) if ranks else "ranks"
    is_first = len(ranks) == 1 and ranks[0] not in named
    what = f"with another {_WORDS[code]} than the others"
    if is_first and _is_extra_barrier(event.text, ranks[0]):
        code, what = codes.EXTRA_COLLECTIVE, "the others did not make, a barrier"
    return Case(
        code=code,
        summary=f"{who} called a collective {what}, as torchfrtrace tells",
        tier=PARTED,
        ranks=tuple(ranks),
        victims=tuple(sorted(view.ranks - set(ranks))) if ranks else (),
        lines=(event,),
        where=_find_place(view, event, ranks[0]) if is_first else (),
        time=find_time([event]),
        confidence=Confidence.LIKELY if ranks else Confidence.POSSIBLE,
        details={"group": "", "sequence": 0, "ops": {}, "named": sorted(named)},
    )


def _is_extra_barrier(text: str, rank: int) -> bool:
    """Tell whether the first rank alone is in a barrier, and no other one.

    A barrier is no form of a call that carries data. Rank 0 alone comes to one where a program lets
    it save or print; of another rank, it may be what it left out before.
    """
    pairs = _TYPES.findall(text)
    is_apart = all(_BARRIER in expected and _BARRIER not in found for expected, found in pairs)
    return rank == 0 and bool(pairs) and is_apart


def _find_place(view: LogView, event: LogEvent, rank: int) -> tuple[Place, ...]:
    """Return the places in the user's code of the stack that is printed below a line."""
    frames = [
        one
        for one in view.list_signatures("table.recorder_frame")
        if one.artifact == event.artifact and one.row > event.row
    ]
    stack = [one.groups for one in frames if one.groups["stack"] == frames[0].groups["stack"]]
    told = [Frame(one["function"], one["file"], int(one["line"])) for one in stack]
    is_near = bool(frames) and int(frames[0].groups["stack"]) - event.row <= _NEAR
    return tuple(make_places(rank, told)) if is_near else ()


def _is_whole(text: str) -> bool:
    """Tell whether a line has all names that it began to tell: one that is cut lacks some."""
    match = _LAST.fullmatch(text.rpartition("Culprit rank ")[2].rstrip())
    return match is not None and match[1] in _STATES


def _find_members(view: LogView, event: LogEvent) -> frozenset[int]:
    """Return the members of the group, which stand above; empty where they do not."""
    last: frozenset[int] = frozenset()
    for other in view.list_signatures("frtrace.expected"):
        if other.artifact == event.artifact and other.row < event.row:
            last = parse_ranks(other.groups.get("ranks") or "")
    return last


def _find_odd(named: frozenset[int], members: frozenset[int]) -> list[int]:
    """Return the ranks that differ from most; none where there is no such side."""
    if max(named) > MAX_RANK:
        return []
    others = members - named
    # Without the members, there are at least those up to the highest that is named.
    count = len(others) if members else max(named) + 1 - len(named)
    if count > len(named):
        return sorted(named)
    return sorted(others) if 0 < len(others) < len(named) else []


def _make_sums(event: LogEvent) -> Case:
    seq = event.groups.get("seq") or "0"
    return Case(
        code=codes.SPLIT_MISMATCH,
        summary=f"what ranks send and receive in all-to-all {seq} does not add up, as torchfrtrace "
        "tells; whose split is wrong is not known",
        tier=PARTED,
        lines=(event,),
        time=find_time([event]),
        confidence=Confidence.POSSIBLE,
        details={"group": "", "sequence": int(seq[:18])},
    )
