"""H127 by stacks that somebody pasted with source: few ranks are past a call that most wait in.

The source beside them tells that a condition leads past the call, and that none leads past what
comes behind it. Who is past it in this step did not make it, as nobody gets out of it alone. Where
most are, their stacks tell, or torchfrtrace does, which names those who did not come.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.blocks import parse_text
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
from whystuck.diagnose.logs.cases.ops.left_behind import make_left_behind
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks, parse_ranks

_LEAST = 3
_MAX_CITES = 4
# So far above a call the condition that leads past it may stand.
_NEAR_LINES = 40
# So far below what torchfrtrace says of a collective its stack stands.
_NEAR_STACK = 16


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
    sources = view.evidence.sources
    waits = all(_may_wait(mains[rank], sources) for rank in past)
    is_clear = waits and _asks_for_data(passed, sources)
    yield _tell(past, sorted(inside), (passed, *site), mains, is_clear=is_clear)


def make_recorded_past(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that torchfrtrace misses, and that wait past the call, by a condition.

    Where a rank tells fewer batches than the others, it left the loop, and left out nothing.
    """
    told, frames = _read_recorded(view)
    missing = parse_ranks(told.groups.get("ranks") or "") if told else frozenset[int]()
    mains = _list_mains(view)
    if not missing or not frames or not missing <= mains.keys() or [*make_left_behind(view)]:
        return
    sites = {select_user_frames(one.main.frames) for rank in missing if (one := mains[rank]).main}
    site = sites.pop()
    sources = view.evidence.sources
    passed = _find_passed(site, _fit(frames, site), sources)
    if sites or passed is None or not all(_is_in_call(mains[rank]) for rank in missing):
        return
    others = sorted(view.ranks - missing)
    is_clear = _asks_for_data(passed, sources)
    case = _tell(sorted(missing), others, (passed, *site), mains, is_clear=is_clear)
    yield replace(case, lines=(told,)) if told else case


def _read_recorded(view: LogView) -> tuple[LogEvent | None, list[Frame]]:
    """Return what torchfrtrace says that one collective lacks, and the stack of that."""
    told = [one for one in view.list_signatures("frtrace.missing") if is_said(one)]
    lacking = {one.groups.get("ranks") for one in told}
    frames: list[Frame] = []
    for one in view.list_signatures("table.recorder_frame"):
        begin = int(one.groups["stack"])
        if told and one.artifact == told[0].artifact and 0 < begin - told[0].row <= _NEAR_STACK:
            groups = one.groups
            frames.append(Frame(groups["function"], groups["file"], int(groups["line"])))
    return (told[0], frames) if len(lacking) == 1 else (None, [])


def _fit(call: Sequence[Frame], site: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a stack as another tool tells one: with its names of files, and no frame further out.

    That tells shorter paths, and people leave out the outer frames.
    """
    names = {
        frame.file: other.file
        for frame in call
        for other in site
        if frame.file.endswith(f"/{other.file}")
    }
    own = [
        Frame(one.function, names.get(one.file, one.file), one.line)
        for one in select_user_frames(call)
    ]
    outer = site[-1] if site else None
    ends = [
        at
        for at, one in enumerate(own)
        if outer and (one.file, one.function) == (outer.file, outer.function)
    ]
    return tuple(own[: ends[-1] + 1] if ends else own)


def _tell(
    past: Sequence[int],
    inside: Sequence[int],
    site: tuple[Frame, ...],
    mains: Mapping[int, StackSample],
    *,
    is_clear: bool,
) -> Case:
    """Tell of ranks at a site, of which the first frame is the call that they went past."""
    own = "its" if len(past) == 1 else "their"
    ranks = [*past, *inside]
    return Case(
        code=codes.SKIPPED_COLLECTIVE,
        summary=f"{name_ranks(past)} went past the call in {describe_place(site[0])}, by a "
        f"condition of {own} own, and came to {describe_place(site[1])}; "
        f"{name_ranks(inside)} wait in that call",
        tier=PARTED - 1,
        ranks=tuple(past),
        victims=tuple(inside),
        where=tuple(place for rank in past for place in make_places(rank, site)),
        # Who computes may as well be late: it is still in the step before. So may anybody be where
        # the condition is a setting, which all ranks have alike.
        confidence=Confidence.LIKELY if is_clear else Confidence.POSSIBLE,
        details={"group": "", "sequence": 0, "ops": {}},
        cites=tuple(
            Citation(f"rank {rank} is here", mains[rank].artifact, mains[rank].row)
            for rank in ranks[:_MAX_CITES]
            if rank in mains
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


def _asks_for_data(call: Frame, sources: Mapping[str, str]) -> bool:
    """Tell whether a condition above a call asks for what is worked out there, by what is shown.

    That is a call, an item, or a name that is given its value in the same text.
    """
    tree = parse_text(sources.get(call.file, ""))
    if tree is None:
        return False
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    tests = [
        node.test
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and 0 <= call.line - node.lineno <= _NEAR_LINES
    ]
    return any(
        isinstance(node, ast.Call | ast.Subscript)
        or (isinstance(node, ast.Name) and node.id in stored)
        for test in tests
        for node in ast.walk(test)
    )
