"""H110 by what the stages of a pipeline note of each micro-batch: who did not pass one on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.ops.stacked_receives import list_stacked_receives
from whystuck.diagnose.logs.cases.ops.transfer_journals import MADE, Note, read_journals
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence

_MAX_LINES = 6
_C10D = "distributed_c10d.py"
_MIRROR = {"recv": "send", "send": "recv"}
_WORDS = {"send": "send micro-batch {} to", "recv": "post the receive of micro-batch {} from"}


@dataclass
class _Journal:
    """The notes of one rank in their order."""

    notes: list[Note] = field(default_factory=list)

    def list_items(self, what: str, way: str, peer: int) -> list[int]:
        """List the micro-batches of the last round of transfers with a peer."""
        items: list[int] = []
        for note in self.notes:
            if (note.what, note.way, note.peer) != (what, way, peer) or note.state not in MADE:
                continue
            if items and note.item <= items[-1]:
                items = []  # the next step counts from the first one again
            items.append(note.item)
        return items

    def find_waiting(self) -> Note | None:
        """Return the transfer that is waited for: the last note, where it says so."""
        last = self.notes[-1] if self.notes else None
        return last if last is not None and last.state == "waiting" else None


def make_pipeline_notes(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that had a micro-batch and did not pass it on to who waits for it."""
    journals = _read_journals(view)
    waits = [note for one in journals.values() if (note := one.find_waiting()) is not None]
    waits += _guess_waits(view, journals)
    waits += _list_stacked(view, journals, {note.rank for note in waits})
    elsewhere = _list_elsewhere(view)
    stacked = {one.rank for one in list_stacked_receives(view)}
    is_stuck = bool(stacked or _list_timed_out(view))
    found = [
        note
        for note in waits
        if note.rank not in elsewhere and _is_past(journals, note, is_stuck=is_stuck)
    ]
    culprits = {note.peer for note in found}
    waiting = {note.rank for note in waits}
    if len(culprits) != 1:
        return
    first = found[0]
    owner = first.peer
    told = [one for one in journals[owner].notes if one.item == first.item]
    silent = next((one for one in reversed(told) if one.state == "left out"), None)
    lines = [one.event for one in ([silent] if silent else told[-1:])] + [
        one.event for one in found
    ]
    did = _WORDS[_MIRROR[first.way]].format(first.item)
    why = f", and says so: `{silent.event.groups['text']}`" if silent else ""
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=f"rank {owner} did not {did} rank {first.rank}, which waits for it{why}",
        tier=PARTED - 1,
        ranks=(owner,),
        victims=tuple(sorted({*waiting, *stacked, *_list_timed_out(view)} - {owner})),
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(lines),
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


def _read_journals(view: LogView) -> dict[int, _Journal]:
    """Return what each rank notes of micro-batches; stages know their neighbours."""
    journals = {
        rank: _Journal([note for note in notes if note.item >= 0 or note.state == "done"])
        for rank, notes in read_journals(view).items()
    }
    if _are_neighbours(journals):
        for rank, journal in journals.items():
            journal.notes = [
                replace(note, peer=_find_neighbour(rank, note.what, note.way))
                if note.way and note.peer < 0
                else note
                for note in journal.notes
            ]
    return journals


def _are_neighbours(journals: dict[int, _Journal]) -> bool:
    """Tell whether all peers that are noted are neighbours: activations go on, gradients back."""
    told = [note for one in journals.values() for note in one.notes if note.way and note.peer >= 0]
    return bool(told) and all(
        note.peer == _find_neighbour(note.rank, note.what, note.way) for note in told
    )


def _find_neighbour(rank: int, what: str, way: str) -> int:
    """Return the stage that a stage sends to or receives from, where ranks count the stages."""
    return rank + (1 if (what == "act") == (way == "send") else -1)


def _list_stacked(view: LogView, journals: dict[int, _Journal], noted: set[int]) -> Iterator[Note]:
    """Yield what ranks wait for in the stack of each, as far as a comment or their notes tell it.

    Whatever does not say which micro-batch it is, is of the one behind the last that came.
    """
    are_neighbours = _are_neighbours(journals)
    for one in list_stacked_receives(view):
        journal = journals.get(one.rank)
        peer = one.peer
        if peer < 0 and are_neighbours and one.what:
            peer = _find_neighbour(one.rank, one.what, "recv")
        if journal is None or not journal.notes or peer not in journals or one.rank in noted:
            continue
        what = one.what or ("act" if peer < one.rank else "grad")
        came = journal.list_items(what, "recv", peer)
        item = came[-1] + 1 if one.item < 0 and came else one.item
        if item >= 0:
            event = journal.notes[-1].event
            yield Note(one.rank, item, "", what, "recv", peer, "waiting", event)


def _guess_waits(view: LogView, journals: dict[int, _Journal]) -> Iterator[Note]:
    """Yield what ranks wait for that timed out in a receive and do not note that they wait.

    That is the one behind the last which their peer sent, be it noted before or after.
    """
    for rank in _list_timed_out(view):
        journal = journals.get(rank)
        last = next((one for one in reversed(journal.notes if journal else []) if one.way), None)
        if last is None or (last.state in MADE, last.way) != (True, "recv"):
            continue
        if last.peer not in journals:
            continue
        sent = journals[last.peer].list_items(last.what, "send", rank)
        if sent and sent[-1] <= last.item <= sent[-1] + 1:
            yield Note(rank, sent[-1] + 1, "", last.what, "recv", last.peer, "waiting", last.event)


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


def _is_past(journals: dict[int, _Journal], wait: Note, *, is_stuck: bool) -> bool:
    """Tell whether a peer had what is waited for, and went on without its half of the transfer.

    It has to note such halves, and to have made the one before. Where it waits for the same itself,
    it has nothing to pass on.
    """
    journal = journals.get(wait.peer)
    if journal is None:
        return False
    made = journal.list_items(wait.what, _MIRROR[wait.way], wait.rank)
    is_usual = bool(made) and wait.item not in made and min(made) < wait.item
    own = journal.find_waiting()
    is_same = own is not None and (own.what, own.item) == (wait.what, wait.item)
    return (
        is_usual
        and not is_same
        and (max(made) > wait.item or _had(journal.notes, wait, is_stuck=is_stuck))
    )


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
        is_other = is_stuck and note.state == "waiting" and note.what != wait.what
        if had and (note.state == "done" or is_other):
            return True
        had |= is_it and note.state in MADE and note.way == "recv"
    return False
