"""H110 and H109 by the sends and receives that ranks print as they make them.

Each line tells one half of a transfer: `mb=7 recv act from 2 ...`. The last one of a rank, where it
does not say that it is over, is what the rank waits in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.algorithms.stacks.positions import is_transferring
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.transfers.stacked_receives import list_stacked_receives
from whystuck.diagnose.logs.cases.transfers.transfer_journals import (
    Journal,
    Note,
    are_neighbours,
    find_neighbour,
    read_journals,
)
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MAX_LINES = 6
_C10D = "distributed_c10d.py"
_TRANSFERS = {"SEND", "RECV", "COALESCED", ""}
_MIRROR = {"recv": "send", "send": "recv"}
_WORDS = {"send": "send {} to", "recv": "post the receive of {} from"}


def make_told_transfers(view: LogView) -> Iterator[Case]:
    """Make the case of a rank that left out a half which its peer waits for, or of a ring.

    Who had what it was to pass on, and went on without its half, left it out. Where nobody did,
    ranks may wait for each other in a ring, or one is silent that alone does not wait.
    """
    journals = read_journals(view)
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    is_told = _may_transfer(view, waits)
    waits = waits if is_told else []
    timed_out = _list_timed_out(view)
    guessed = list(_guess_waits(timed_out, journals))
    for journal in journals.values() if is_told else ():
        journal.open_last()
    found = {rank: one.find_waiting() for rank, one in journals.items()}
    pending = {
        rank: note
        for rank, note in found.items()
        if note is not None and (is_told or note.event.groups["item"])
    }
    wanted = [*pending.values(), *guessed]
    wanted += _list_stacked(view, journals, {note.rank for note in wanted})
    stacked = {one.rank for one in list_stacked_receives(view)}
    elsewhere = _list_elsewhere(view)
    missing = [
        note for note in wanted if note.rank not in elsewhere and _is_missing(journals, note)
    ]
    is_stuck = bool(stacked or timed_out or is_told)
    due = [note for note in missing if _is_past(journals[note.peer], note, is_stuck=is_stuck)]
    waiting = {note.rank for note in wanted} | stacked | {*timed_out, *list_ranks(waits)}
    if is_told and not due:
        if ring := _find_ring(pending):
            yield _tell_ring(ring, waits)
            return
        silent = [note for note in missing if note.peer not in pending]
        due = silent if waiting.isdisjoint(note.peer for note in silent) else []
    if len({note.peer for note in due}) == 1:
        yield _tell_left_out(journals, due, waits, waiting)


def _may_transfer(view: LogView, waits: Sequence[LogEvent]) -> bool:
    """Tell whether something tells that ranks wait in transfers, or may do so."""
    stacks = [one.main for one in view.evidence.stacks if one.main is not None]
    is_told = any((event.groups.get("op") or "").upper() in _TRANSFERS for event in waits)
    return is_told or any(is_transferring(one.frames) for one in stacks)


def _list_stacked(
    view: LogView, journals: Mapping[int, Journal], noted: set[int]
) -> Iterator[Note]:
    """Yield what ranks wait for in the stack of each, as far as a comment or their notes tell it.

    Whatever does not say which micro-batch it is, is of the one behind the last that came.
    """
    for one in list_stacked_receives(view):
        journal = journals.get(one.rank)
        peer = one.peer
        if peer < 0 and one.what and are_neighbours(journals):
            peer = find_neighbour(one.rank, one.what, "recv")
        if journal is None or not journal.notes or peer not in journals or one.rank in noted:
            continue
        what = one.what or ("act" if peer < one.rank else "grad")
        came = journal.list_items(what, "recv", peer)
        item = came[-1] + 1 if one.item < 0 and came else one.item
        if item >= 0:
            event = journal.notes[-1].event
            yield Note(one.rank, item, what, "recv", peer, "waiting", event)


def _guess_waits(timed_out: Sequence[int], journals: Mapping[int, Journal]) -> Iterator[Note]:
    """Yield what ranks wait for that timed out in a receive and do not note that they wait.

    That is the one behind the last which their peer sent, be it noted before or after.
    """
    for rank in timed_out:
        journal = journals.get(rank)
        last = next((one for one in reversed(journal.notes if journal else []) if one.way), None)
        if last is None or (last.is_made, last.way) != (True, "recv"):
            continue
        if last.peer not in journals:
            continue
        sent = journals[last.peer].list_items(last.what, "send", rank)
        if sent and sent[-1] <= last.item <= sent[-1] + 1:
            yield Note(rank, sent[-1] + 1, last.what, "recv", last.peer, "waiting", last.event)


def _list_timed_out(view: LogView) -> list[int]:
    """List the ranks that gave up a receive, as watchdogs and tracebacks tell."""
    ranks = {
        rank
        for group in list_told_groups(view)
        if not group.is_of_members
        for rank, op in group.ops.items()
        if op.op == "recv"
    }
    for item in view.exceptions:
        calls = {frame.function for frame in item.frames if frame.file.endswith(_C10D)}
        if item.rank >= 0 and is_timeout(item) and "recv" in calls:
            ranks.add(item.rank)
    return sorted(ranks)


def _list_elsewhere(view: LogView) -> set[int]:
    """List the ranks that gave up another operation than a transfer, as watchdogs tell."""
    told = ((rank, op.op) for group in list_told_groups(view) for rank, op in group.ops.items())
    return {rank for rank, op in told if op not in _MIRROR}


def _is_missing(journals: Mapping[int, Journal], wait: Note) -> bool:
    """Tell whether the other half of a transfer is not noted by a rank that notes such halves."""
    journal = journals.get(wait.peer, Journal())
    made = journal.list_items(wait.what, _MIRROR[wait.way], wait.rank)
    return bool(made) and wait.item not in made and min(made) < wait.item


def _is_past(journal: Journal, wait: Note, *, is_stuck: bool) -> bool:
    """Tell whether a peer had what is waited for, and went on without its half of the transfer.

    Where it waits for the same itself, it has nothing to pass on.
    """
    made = journal.list_items(wait.what, _MIRROR[wait.way], wait.rank)
    own = journal.find_waiting()
    is_same = own is not None and (own.what, own.item) == (wait.what, wait.item)
    return not is_same and (max(made) > wait.item or _had(journal.notes, wait, is_stuck=is_stuck))


def _had(notes: Sequence[Note], wait: Note, *, is_stuck: bool) -> bool:
    """Tell whether a rank notes that it leaves a micro-batch out, or had it and does other things.

    Who only received the next one may still be at work on this one, and so may one that waits for
    another while nobody has given up.
    """
    had = False
    for note in notes:
        is_it = note.item == wait.item and note.what == wait.what
        if is_it and note.state == "left out":
            return True
        is_other = is_stuck and note.is_waiting and note.what != wait.what
        if had and (note.state == "done" or is_other):
            return True
        had |= is_it and note.is_made and note.way == "recv"
    return False


def _find_ring(pending: Mapping[int, Note]) -> list[Note]:
    """Return the halves of ranks that wait for each other in a ring, all of one kind."""
    for begin in sorted(pending):
        seen = [begin]
        while (peer := pending[seen[-1]].peer) in pending and peer not in seen:
            seen.append(peer)
        ring = [pending[rank] for rank in seen]
        is_alike = len({(one.way, one.what, one.item) for one in ring}) == 1
        if pending[seen[-1]].peer == begin and len(ring) >= _PAIR and is_alike:
            return ring
    return []


def _tell_left_out(
    journals: Mapping[int, Journal], due: Sequence[Note], waits: list[LogEvent], waiting: set[int]
) -> Case:
    """Tell of the rank that never made the half which others wait for."""
    first = due[0]
    owner, notes = first.peer, journals[first.peer].notes
    said = [one for one in notes if one.item == first.item and one.state == "left out"]
    why = f", and says so: `{said[-1].event.groups['text']}`" if said else ""
    thing = f"micro-batch {first.item}" if first.event.groups["item"] else "what is due"
    lines = [one.event for one in (*(said or notes)[-1:], *due)]
    return Case(
        code=codes.P2P_UNMATCHED,
        summary=f"rank {owner} did not {_WORDS[_MIRROR[first.way]].format(thing)} rank "
        f"{first.rank}, which waits for it{why}",
        tier=PARTED - 1,
        ranks=(owner,),
        victims=tuple(sorted(waiting - {owner})),
        lines=_keep_first(lines, waits),
        time=find_time(waits or lines),
        confidence=Confidence.LIKELY,
        details={
            "pair": [first.rank, owner],
            "op": first.way,
            "waiting_rank": first.rank,
            "micro_batch": first.item,
        },
        remedies=(
            (
                "send each micro-batch on, be it empty, or let both stages leave it out by a "
                "condition that both know"
            ),
        ),
    )


def _tell_ring(ring: Sequence[Note], waits: list[LogEvent]) -> Case:
    """Tell of ranks that all send first, or all receive first."""
    ranks, kind = sorted(one.rank for one in ring), ring[0].way
    who = "both wait" if len(ranks) == _PAIR else "all wait"
    return Case(
        code=codes.P2P_CYCLE,
        summary=f"{name_ranks(ranks)} {who} in {kind} for each other, as they print: each posts "
        "the other half only later",
        tier=PARTED - 1,
        ranks=tuple(ranks),
        lines=_keep_first([one.event for one in ring], waits),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"ring": ranks, "ops": dict.fromkeys(map(str, ranks), kind)},
    )


def _keep_first(lines: Sequence[LogEvent], waits: Sequence[LogEvent]) -> tuple[LogEvent, ...]:
    told = {(event.artifact, event.row): event for event in (*lines, *waits)}
    return tuple(told.values())[:_MAX_LINES]
