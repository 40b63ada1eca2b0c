"""H103 by words or counts of a rank that is behind: it left the loop that the others are still in.

Who is behind is told by NCCL RAS, by other tools and by watchdogs. That it left, rather than that
it is late, is told by its own line, by batches of which it has fewer than all others, or by those
that it has had, where all others are at further ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.context.ras_facts import find_laggards
from whystuck.diagnose.logs.cases.ops.missing import make_missing
from whystuck.diagnose.logs.cases.ops.parted import make_parted
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_LEAST_RANKS = 2
_PLACES = 2
# How a rank says that the batches it counts were all, and loops beside that over the training data.
_ENDS = re.compile(r"\b(?:finished|done|completed?|ended|over|exhausted)\b", re.IGNORECASE)
# That training is over may be said of all; who is over says what it does then.
_LEAVES = re.compile(
    r"exhausted|destroy_process_group|\bprocess group|\b(?:exit|leav|quit|return)(?:ing|s)\b"
    r"|\bno more (?:data|batches|samples)\b|\b(?:good)?bye\b",
    re.IGNORECASE,
)
_OTHER_LOOPS = re.compile(
    r"valid|\bval\b(?! \w{1,9}[ =:]{1,2}\d)|\bval[ _]?(?:loop|epoch|batch|step)|\beval|\btest"
    r"|warm-?up|prefetch|skip|drop|cach|preload|\bload",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Behind:
    """Ranks that did not come to what others wait in, and what says so."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    lines: tuple[LogEvent, ...] = ()


def make_left_behind(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that are behind, and that left the loop by what logs tell of them."""
    said = _list_leavers(view)
    fewer = _list_fewer(view) or _list_passed(view) or _list_shorter(view)
    if not said and not fewer:
        return
    for behind in (*_list_behind(view), *_list_silent(view, fewer)):
        leavers = set(behind.ranks)
        # What all say is the normal end of a loop.
        is_said = leavers <= said.keys() and not said.keys() & set(behind.waiting)
        is_fewer = leavers == fewer.keys()
        if not leavers or not (is_said or is_fewer):
            continue
        who = name_ranks(behind.ranks)
        if is_said:
            words = said[behind.ranks[0]].text.strip()
            text = f"{who} left the loop, by what the log says of it: {words:.120}"
        else:
            counts = " and ".join(sorted({_count(fewer[rank]) for rank in behind.ranks}))
            text = f"{who} had {counts} batches, fewer than all others"
        own = [said[rank] for rank in behind.ranks] if is_said else []
        own += [fewer[rank] for rank in behind.ranks] if is_fewer else []
        yield Case(
            code=codes.LEFT_EARLY,
            summary=f"{text}; {name_ranks(behind.waiting)} went on and "
            f"{'wait' if len(behind.waiting) > 1 else 'waits'} for it"
            if behind.waiting
            else text,
            tier=PARTED - 1,
            ranks=behind.ranks,
            victims=behind.waiting,
            lines=(*own, *behind.lines)[:_MAX_LINES],
            time=find_time(own),
            confidence=Confidence.LIKELY,
            where=tuple(_place(view, behind.ranks)),
        )
        return


def _list_behind(view: LogView) -> Iterator[_Behind]:
    laggard = find_laggards(view.evidence, view.ranks)
    if laggard is not None:
        yield _Behind(laggard.ranks, tuple(sorted(laggard.waiting)))
    for case in (*make_missing(view), *make_parted(view)):
        if case.code == codes.RANK_NEVER_JOINED:
            yield _Behind(tuple(sorted(case.ranks)), tuple(case.victims), case.lines)


def _list_silent(view: LogView, fewer: Collection[int]) -> Iterator[_Behind]:
    """Yield the ranks with fewer batches, where all others of the job waited in vain."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    waiting = list_ranks(waits)
    if waiting and set(waiting) == view.ranks - set(fewer):
        yield _Behind(tuple(sorted(fewer)), waiting, tuple(waits[:_MAX_LINES]))


def _place(view: LogView, ranks: Sequence[int]) -> Iterator[Place]:
    """Yield where ranks are now, as far as their stacks are there."""
    last = {one.rank: one.main for one in view.evidence.stacks if not one.worker}
    for rank in ranks:
        if (main := last.get(rank)) is not None:
            yield from make_places(rank, main.frames, _PLACES)


def _list_leavers(view: LogView) -> dict[int, LogEvent]:
    """Return the ranks that say that they leave a loop, or of which a line says so."""
    found: dict[int, LogEvent] = {}
    over = (one for one in view.list_signatures("job.done") if _LEAVES.search(one.text))
    for event in (*over, *view.list_signatures("data.ended", "loop.ended", "group.left")):
        named = event.groups.get("who") or ""
        rank = int(named) if named.isdecimal() else event.rank
        if rank >= 0 and is_said(event) and not event.is_past:
            found[rank] = event
    return found


def _list_fewer(view: LogView) -> dict[int, LogEvent]:
    """Return the few ranks that have fewer batches in the last epoch than all others have.

    How long loaders are is told apart from how many batches an epoch had: who is done with one
    before the others alone has such a line of it.
    """
    tables: dict[tuple[str, str], dict[int, LogEvent]] = {}
    epochs: dict[int, str] = {}
    for event in view.list_signatures("table.batches"):
        if event.rank >= 0 and not event.groups["kind"]:
            epoch = event.groups["epoch"]
            tables.setdefault((epoch, event.groups["loader"]), {})[event.rank] = event
            epochs |= {event.rank: epoch} if epoch else {}
    most = max(map(len, tables.values()), default=0)
    whole = {key: table for key, table in tables.items() if len(table) == most}
    if most < _LEAST_RANKS or len({*epochs.values()}) > 1:
        return {}
    last = [table for (epoch, _), table in whole.items() if epoch == [*whole][-1][0]]
    return next((few for table in reversed(last) if (few := _choose_fewer(table))), {})


def _list_passed(view: LogView) -> dict[int, LogEvent]:
    """Return the few ranks that are done after some batches, where all others are at further ones.

    Who prints a batch below its count goes on with the next epoch.
    """
    counts: dict[int, LogEvent] = {}
    for event in view.list_signatures("table.batches"):
        is_end = bool(_ENDS.search(event.text)) and not _OTHER_LOOPS.search(event.text)
        if event.rank >= 0 and not event.groups["kind"] and is_end and not event.is_past:
            counts[event.rank] = event
    steps = {event.rank: event for event in view.list_signatures("table.rank_batch")}
    others = view.ranks - counts.keys()
    if not counts or len(counts) > len(others) or not others <= steps.keys():
        return {}
    most = max(int(event.groups["count"]) for event in counts.values())
    is_passed = all(most < int(steps[rank].groups["batch"]) for rank in others)
    is_over = all(rank not in steps or _is_above(steps[rank], one) for rank, one in counts.items())
    epochs = {one.groups["epoch"] for one in (*counts.values(), *map(steps.__getitem__, others))}
    return counts if is_passed and is_over and len(epochs - {""}) <= 1 else {}


def _list_shorter(view: LogView) -> dict[int, LogEvent]:
    """Return the few ranks that are at the last batch of an epoch that has more for all others."""
    steps = {event.rank: event for event in view.list_signatures("table.rank_batch")}
    epochs = {event.groups["epoch"] for event in steps.values()}
    most = max((int(event.groups["all"]) for event in steps.values()), default=0)
    few = {rank: event for rank, event in steps.items() if int(event.groups["all"]) < most}
    at = {rank: int(event.groups["batch"]) for rank, event in steps.items()}
    last = max((int(event.groups["all"]) for event in few.values()), default=0)
    is_over = all(at[rank] == int(event.groups["all"]) for rank, event in few.items())
    are_there = all(at[rank] >= last for rank in steps.keys() - few.keys())
    # Of another loop, there are far more or fewer.
    is_same = 2 * last > most and not any(_OTHER_LOOPS.search(one.text) for one in few.values())
    is_told = 2 * len(few) < len(steps) and len(epochs) == 1 and is_same
    return few if is_told and is_over and are_there else {}


def _count(event: LogEvent) -> str:
    return event.groups.get("count") or event.groups["all"]


def _is_above(event: LogEvent, other: LogEvent) -> bool:
    return event.artifact == other.artifact and event.row < other.row


def _choose_fewer(table: dict[int, LogEvent]) -> dict[int, LogEvent]:
    counts = {rank: int(event.groups["count"]) for rank, event in table.items()}
    most = max(counts.values())
    few = {rank: table[rank] for rank, count in counts.items() if count < most}
    return few if 2 * len(few) < len(table) or len(table) == _LEAST_RANKS else {}
