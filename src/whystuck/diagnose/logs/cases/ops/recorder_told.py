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

_NAMED = re.compile(r"Culprit rank (\d{1,7}); Error [Tt]ype: ([A-Z_]{3,40})")
# Other versions of the tool, and people who shorten it, write the state first.
_STATE_FIRST = re.compile(
    r"Error type: ([A-Z_]{3,40})\W{1,4}culprit ranks? (\d{1,7}(?:(?:, ?| and | )\d{1,7}){0,255})",
    re.IGNORECASE,
)
# A state that differs says who came further, not who is wrong.
_CODES = (
    ("DTYPE_MISMATCH", codes.DTYPE_MISMATCH),
    ("TYPE_MISMATCH", codes.OP_MISMATCH),
    ("SIZE", codes.SHAPE_MISMATCH),
    ("SHAPE", codes.SHAPE_MISMATCH),
    ("NUMEL", codes.SHAPE_MISMATCH),
)
_WORDS = {codes.OP_MISMATCH: "op", codes.SHAPE_MISMATCH: "shape", codes.DTYPE_MISMATCH: "type"}
# The last name of a line, with what it says of it; a line that ends elsewhere has been cut.
_LAST = re.compile(
    r"\d{1,7}; Error [Tt]ype: ([A-Z_]{3,40})(?:[,;] (?>.*? does not match )[^'\n]*'.*')?"
)
_TYPES = re.compile(
    r"Expected collective type: '([\w:]{1,60})' does not match "
    r"found collective type: '([\w:]{1,60})'"
)
_BARRIER = "barrier"
# So far below what is said of a collective its stack stands.
_NEAR = 4
_STATES = re.compile(r"\w{3,30}_MISMATCH|UNDECIDED")
# So far from what is said of a collective the sizes of its tensors stand.
_NEAR_SIZES = 16
_SIDES = 2
_LEAST = 3


def make_recorder_told(view: LogView) -> Iterator[Case]:
    """Make the case of a collective that ranks called in different ways."""
    for event in view.list_signatures("frtrace.culprit", "frtrace.alltoall"):
        if not is_said(event):
            continue
        is_named = event.signature == "frtrace.culprit"
        case = _make_named(view, event) if is_named else _make_sums(event)
        if case is not None:
            yield case
            return


def _make_named(view: LogView, event: LogEvent) -> Case | None:
    by_code: dict[str, set[int]] = {}
    for rank, state in _list_named(event.text):
        if found := _find_code(state):
            by_code.setdefault(found, set()).add(rank)
    if not by_code:
        return None
    code = min(by_code)
    named = frozenset().union(*by_code.values())
    ranks = _find_odd_sizes(view, event, code)
    if not ranks and _is_whole(event.text):
        ranks = _find_odd(named, _find_members(view, event))
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


def _list_named(text: str) -> list[tuple[int, str]]:
    """Return the ranks that a line names, each with its state."""
    if pairs := _STATE_FIRST.findall(text):
        return [
            (int(rank), state.upper())
            for state, ranks in pairs
            for rank in re.findall(r"\d+", ranks)
        ]
    return [(int(rank), state) for rank, state in _NAMED.findall(text)]


def _find_code(state: str) -> str:
    """Return what a state is, empty where it says who came further, not who is wrong."""
    return next((code for word, code in _CODES if word in state), "")


def _find_odd_sizes(view: LogView, event: LogEvent, code: str) -> list[int]:
    """Return the few ranks whose tensors differ from those of most, as the lines beside tell."""
    kind = {codes.SHAPE_MISMATCH: "shape", codes.DTYPE_MISMATCH: "type"}.get(code)
    tables: dict[str, dict[int, str]] = {}
    for one in view.list_signatures("table.rank_size"):
        is_near = one.artifact == event.artifact and 0 <= one.row - event.row <= _NEAR_SIZES
        if is_near and one.groups["kind"] == kind:
            tables.setdefault(one.groups["table"], {})[int(one.groups["own"])] = one.groups["value"]
    found = {tuple(odd) for shown in tables.values() if (odd := _find_few(shown))}
    return list(found.pop()) if len(found) == 1 else []


def _find_few(shown: dict[int, str]) -> list[int]:
    """Return who has what few have, where all others have the same."""
    values = sorted(set(shown.values()), key=[*shown.values()].count)
    few = sorted(rank for rank, value in shown.items() if value == values[0])
    is_clear = len(values) == _SIDES and len(shown) >= _LEAST and 2 * len(few) < len(shown)
    return few if is_clear else []


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
    if _STATE_FIRST.search(text):
        return True
    match = _LAST.fullmatch(text.rpartition("Culprit rank ")[2].rstrip())
    return match is not None and _STATES.fullmatch(match[1]) is not None


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
