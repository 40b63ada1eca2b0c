"""H102 and H127 by tracebacks of ranks that part, and source beside them.

Ranks that wait until a time limit, or whose calls torch finds to differ, say where they are. What
is shown of the source tells whether the few came to a call of their own, by a condition on the
rank, or went past the call of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.algorithms.source.branches import is_in_loop, may_be_past
from whystuck.diagnose.algorithms.source.calls import find_lone_calls
from whystuck.diagnose.algorithms.source.reach import Reach, find_parting, find_reach
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    make_places,
    select_user_frames,
)
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import OWN, PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_DIFFERS = "Detected mismatch between collectives on ranks"


@dataclass(frozen=True)
class _Side:
    """Ranks that are at one call, with the tracebacks that say so."""

    ranks: tuple[int, ...]
    site: tuple[Frame, ...]
    raised: tuple[PythonException, ...]


def make_parted_sites(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks at another call than all others, as far as source tells why."""
    sources = view.evidence.sources
    differing = [item for item in view.exceptions if _DIFFERS in item.message]
    sides = _list_sides(differing or [item for item in view.exceptions if is_timeout(item)])
    if not sources or len(sides) != _PAIR:
        return
    few, many = sides
    tier = OWN - 1 if differing else PARTED - 1
    if (call := _find_lone_call(few, many, sources)) is not None:
        yield _tell(
            few,
            many,
            code=codes.EXTRA_COLLECTIVE,
            text=f"{name_ranks(few.ranks)} alone came to the call in {describe_place(call)}, by a "
            "condition on the rank",
            site=(call, *few.site),
            tier=tier,
        )
    elif (past := _find_passed(few, many, sources)) is not None:
        own = "its" if len(few.ranks) == 1 else "their"
        yield _tell(
            few,
            many,
            code=codes.SKIPPED_COLLECTIVE,
            text=f"{name_ranks(few.ranks)} went past the call in {describe_place(past)}, by a "
            f"condition of {own} own, and came to {describe_place(few.site[0])}",
            site=(past, *few.site),
            tier=tier,
        )


def _list_sides(raised: Sequence[PythonException]) -> list[_Side]:
    """Put ranks together that are at the same lines, the fewest first."""
    last = {item.rank: item for item in raised if item.rank >= 0 and item.frames}
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, item in sorted(last.items()):
        # Of a traceback that is cut, only the inner frames are there.
        site = select_user_frames(item.frames)
        same = next((one for one in groups if _is_same_site(one, site)), site)
        groups.setdefault(same, []).append(rank)
    sides = [
        _Side(tuple(ranks), site, tuple(last[rank] for rank in ranks))
        for site, ranks in groups.items()
        if site
    ]
    return sorted(sides, key=lambda side: (len(side.ranks), side.ranks))


def _is_same_site(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    pairs = list(zip(one, other, strict=False))
    return bool(pairs) and all(a == b for a, b in pairs)


def _find_lone_call(few: _Side, many: _Side, sources: Mapping[str, str]) -> Frame | None:
    """Find the call that the source lets the few alone make, by their rank."""
    found: set[Frame] = set()
    for rank in few.ranks:
        for frame in few.site:
            for call in find_lone_calls(frame, rank, many.ranks[:1], sources):
                is_theirs = call.place.line == frame.line and call.place.file == frame.file
                if not call.has_group and (
                    is_theirs or may_be_past(frame, call.path[0].line, sources)
                ):
                    found.add(call.place)
    return found.pop() if len(found) == 1 else None


def _find_passed(few: _Side, many: _Side, sources: Mapping[str, str]) -> Frame | None:
    """Find the call of the many past which a condition leads, and none past that of the few.

    The few are further on, or in the loop again.
    """
    shared = find_parting(few.site, many.site)
    if len(many.ranks) < _PAIR or len(few.ranks) >= len(many.ranks) or shared is None:
        return None
    # Of what is called there, the source is rarely shown.
    ours, theirs = few.site[-1 - shared :], many.site[-1 - shared :]
    is_open = find_reach(theirs, ours, sources) is Reach.OPEN
    is_sure = find_reach(ours, theirs, sources) is Reach.ALL
    is_further = ours[0].line > theirs[0].line or is_in_loop(ours[:1], sources)
    return theirs[0] if is_open and is_sure and is_further else None


def _tell(
    few: _Side, many: _Side, *, code: str, text: str, site: tuple[Frame, ...], tier: int
) -> Case:
    raised = (*few.raised, *many.raised)
    return Case(
        code=code,
        summary=f"{text}; {name_ranks(many.ranks)} are at {describe_place(many.site[0])}",
        tier=tier,
        ranks=few.ranks,
        victims=many.ranks,
        exceptions=raised,
        where=tuple(
            place for rank in few.ranks for place in make_places(rank, tuple(dict.fromkeys(site)))
        ),
        time=find_time(raised),
        confidence=Confidence.LIKELY,
        details={"group": "", "sequence": 0, "ops": {}},
        scope=frozenset({*few.ranks, *many.ranks}),
    )
