"""H127 by stacks that somebody pasted with source: few ranks are past a call that most wait in.

The source beside them tells that a condition leads past the call, and that none leads past what
comes behind it. Who is past it in this step did not make it, as nobody gets out of it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.reach import Reach, find_parting, find_reach
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    make_places,
    select_user_frames,
)
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_transferring,
    locate,
    may_wait_for_device,
)
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_LEAST = 3
_MAX_CITES = 4


def make_stacked_past(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks past the one call that all others are in, by a condition."""
    mains = _list_mains(view)
    sites = {rank: select_user_frames(one.main.frames) for rank, one in mains.items() if one.main}
    inside = {rank for rank in sites if _is_in_call(mains[rank])}
    past = sorted(sites.keys() - inside)
    calls = {sites[rank] for rank in inside}
    is_whole = bool(sites) and sites.keys() >= view.ranks and len(sites) >= _LEAST
    if not is_whole or len(calls) != 1 or not 0 < 2 * len(past) < len(sites):
        return
    places = {sites[rank] for rank in past}
    call = calls.pop()
    if len(places) != 1:
        return
    site = places.pop()
    passed = _find_passed(site, call, view.evidence.sources)
    if passed is None:
        return
    waits = all(_may_wait(mains[rank], view.evidence.sources) for rank in past)
    own = "its" if len(past) == 1 else "their"
    ranks = [*past, *sorted(inside)]
    yield Case(
        code=codes.SKIPPED_COLLECTIVE,
        summary=f"{name_ranks(past)} went past the call in {describe_place(passed)}, by a "
        f"condition of {own} own, and came to {describe_place(site[0])}; "
        f"{name_ranks(sorted(inside))} wait in that call",
        tier=PARTED - 1,
        ranks=tuple(past),
        victims=tuple(sorted(inside)),
        where=tuple(place for rank in past for place in make_places(rank, (passed, *site))),
        # Who computes may as well be late: it is still in the step before.
        confidence=Confidence.LIKELY if waits else Confidence.POSSIBLE,
        details={"group": "", "sequence": 0, "ops": {}},
        cites=tuple(
            Citation(f"rank {rank} is here", mains[rank].artifact, mains[rank].row)
            for rank in ranks[:_MAX_CITES]
        ),
        scope=frozenset(ranks),
    )


def _list_mains(view: LogView) -> dict[int, StackSample]:
    """Return the last stack of each rank that somebody pasted."""
    shown = [one for one in view.evidence.stacks if not one.worker and one.rank >= 0]
    if not view.evidence.sources or any(one.row is None for one in shown):
        return {}
    return {one.rank: one for one in shown if one.main is not None}


def _is_in_call(sample: StackSample) -> bool:
    """Tell whether a rank waits in a collective, or for its device, in which that runs."""
    frames = sample.main.frames if sample.main is not None else ()
    return locate(frames).doing is Doing.COLLECTIVE and not is_transferring(frames)


def _may_wait(sample: StackSample, sources: Mapping[str, str]) -> bool:
    """Tell whether a rank may wait for its device: what is queued there comes to no end."""
    frames = sample.main.frames if sample.main is not None else ()
    text = sources.get(frames[0].file, "").split("\n") if frames else []
    line = text[frames[0].line - 1] if frames and 0 < frames[0].line <= len(text) else ""
    return may_wait_for_device(frames, line) or locate(frames).doing is Doing.BACKWARD


def _find_passed(
    site: tuple[Frame, ...], call: tuple[Frame, ...], sources: Mapping[str, str]
) -> Frame | None:
    """Find the call of most past which a condition leads, and none past where the few are."""
    shared = find_parting(site, call)
    if shared is None:
        return None
    # Of what is called there, the source is rarely shown.
    ours, theirs = site[-1 - shared :], call[-1 - shared :]
    is_open = find_reach(theirs, ours, sources) is Reach.OPEN
    is_sure = find_reach(ours, theirs, sources) is Reach.ALL
    return theirs[0] if is_open and is_sure and ours[0].line > theirs[0].line else None
