"""H118 by a file that grew at each look, beside ranks that wait: who writes it is at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.algorithms.processes.growth import find_growth
from whystuck.diagnose.algorithms.stacks.positions import Doing, is_saving, locate
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.saves.saves import find_saver, make_slow_saves
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_ENDS = ("progress.file_done", "progress.saved", "progress.took")
# DeepSpeed's first rank writes this one, and says so before.
_OF_FIRST = "mp_rank_00_model_states.pt"
# What stands behind the name of a file until all of it is there.
_UNDONE = (".tmp", ".part", ".partial", ".incomplete", ".temp")


def make_growing_saves(view: LogView) -> Iterator[Case]:
    """Make the case of a checkpoint that was seen to grow while ranks wait for whoever writes it.

    The rank is the one that said that it saves, or whose stack alone is shown and is in the save;
    one that waits itself does not save.
    """
    growth = find_growth(view.events)
    if growth is None or any(make_slow_saves(view)):
        return  # what tells how long saves took tells more
    lines = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    stacks = [one for one in view.evidence.stacks if not one.worker]
    writer = _find_shown_saver(stacks)
    waiting = {*list_ranks(lines), *list_ranks(raised)}
    waiting |= {one.rank for one in stacks} - {writer}
    if writer is None and not (waiting and all(map(_is_waiting, stacks))):
        return  # the stack of who writes, or of who is elsewhere, is judged with the others
    told = _list_begun(view, growth.file)
    named = {find_saver(event) for event in (*told, growth.last)} - {-1}
    named |= {writer} if writer is not None else set()
    announced = () if named else _list_announced(view, told, growth.file)
    named |= {find_saver(event) for event in announced} - {-1}
    savers = tuple(named) if len(named) == 1 else ()
    if named & waiting:
        return
    who = f", which {name_ranks(savers)} saves," if savers else ""
    rate = f" by {growth.mb_per_s} MB/s" if growth.mb_per_s else ""
    victims = tuple(sorted(rank for rank in waiting if rank >= 0))
    whom = name_ranks(victims) if victims else "others"
    waited = f", and {whom} waited meanwhile" if waiting else ""
    yield Case(
        code=codes.CHECKPOINT_SLOW,
        summary=f"{growth.file or 'a checkpoint'}{who} grew{rate} at each look{waited}: "
        "the save is slow, and goes on",
        tier=BUSY,
        ranks=savers,
        victims=victims,
        lines=(*announced[-1:], *told[-1:], growth.last, *lines)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(lines, raised),
        confidence=Confidence.LIKELY if savers else Confidence.POSSIBLE,
        details={"state": "running"},
        remedies=("raise the time limit around the save",),
    )


def _find_shown_saver(stacks: Sequence[StackSample]) -> int | None:
    """Return the rank that is in a save in all stacks that are shown: whoever waits is not."""
    ranks = {
        one.rank
        for one in stacks
        if one.main is not None and is_saving(one.main.frames) and not _is_waiting(one)
    }
    is_alone = len(ranks) == 1 and ranks == {one.rank for one in stacks}
    return min(ranks) if is_alone and min(ranks) >= 0 else None


def _is_waiting(sample: StackSample) -> bool:
    main = sample.main
    return main is not None and locate(main.frames).doing is Doing.COLLECTIVE


def _list_begun(view: LogView, file: str) -> list[LogEvent]:
    """Return the lines that say that a file is being saved, and not that it was since.

    Where nobody names the file, those that tell of a save at all.
    """
    events = [one for one in view.list_signatures("progress.file_begun") if is_said(one)]
    begun = [one for one in events if _name(one.groups["file"]) == _name(file)]
    begun = begun or [one for one in view.list_signatures("progress.save") if is_said(one)]
    ends = [(one.artifact, one.row) for one in view.list_signatures(*_ENDS)]
    return [
        one
        for one in begun
        if not one.is_past and not any(log == one.artifact and row > one.row for log, row in ends)
    ]


def _list_announced(view: LogView, told: Sequence[LogEvent], file: str) -> tuple[LogEvent, ...]:
    """Return the lines of DeepSpeed's first rank that tell of the save that a file is of.

    That rank writes the states of the model; each rank writes a shard of the optimizer's.
    """
    folders = {
        part
        for event in told
        if _name(event.groups.get("file") or "") == _name(file)
        for part in PurePosixPath(event.groups["file"]).parent.parts
    }
    if PurePosixPath(file).name != _OF_FIRST:
        return ()
    return tuple(
        event
        for event in view.list_signatures("progress.announced")
        if is_said(event) and not event.is_past and event.groups["tag"] in folders
    )


def _name(file: str) -> str:
    path = PurePosixPath(file)
    return path.stem if path.suffix in _UNDONE else path.name
