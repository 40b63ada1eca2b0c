"""H110 by the words of a rank: it says that it sends nothing, and others wait in a receive.

It says so again and again, or once of the very micro-batch that a receiver waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.transfers.transfer_journals import (
    Journal,
    Note,
    find_neighbour,
    read_journals,
)
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_MAX_TEXT = 100
_RECEIVES = {"recv", "recvanysource"}
# Once may be the turn of a step in which nothing is due.
_LEAST = 2
_YET = re.compile(r"\b(?:send|publish|push|post) (?:\w{1,12} )?yet\b")
_SOURCE = re.compile(r"\b(?:src|source|peer) ?= ?(\d{1,7})\b")
_SEND_ANYHOW = (
    "send in each round, be it an empty message, or let both ends skip it by a condition that both "
    "know"
)


def make_left_out_sends(view: LogView) -> Iterator[Case]:
    """Make the case of the one rank that says that it sends nothing, while others wait to receive.

    Where several say so, it is what ranks do that have nothing to send; and one that waits in a
    receive itself has its reason there.
    """
    waits = [
        event
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("op") or "").lower() in _RECEIVES
    ]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    receiving = set(list_ranks(waits)) - {-1}
    told = [
        event
        for event in view.list_signatures("p2p.left_out")
        if is_said(event) and not event.is_past and not _YET.search(event.text)
    ]
    ranks = list_ranks(told)
    waiting = receiving | set(list_ranks(raised))
    if len(ranks) != 1 or any(event.rank < 0 for event in told):
        return
    count = sum(event.count for event in told)
    named = _list_named(view)
    if not receiving or ranks[0] in waiting or (named and ranks[0] not in named):
        return
    if count < _LEAST and not _is_awaited(view, told, receiving, is_named=bool(named)):
        return
    words = told[-1].text.strip()[:_MAX_TEXT]
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=f"{name_ranks(ranks)} left out what it was to send, as it says itself: `{words}`; "
        f"{name_ranks(sorted(receiving))} waited in a receive until a time limit",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*told[:2], *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(waits, raised),
        confidence=Confidence.LIKELY,
        details={
            "pair": [min(receiving), ranks[0]],
            "op": "recv",
            "waiting_rank": min(receiving),
        },
        remedies=(_SEND_ANYHOW,),
    )


def _list_named(view: LogView) -> set[int]:
    """Return the ranks that the lines of receives in tracebacks name as their senders."""
    calls = (one for one in view.list_signatures("source.transfer") if "recv" in one.text)
    return {int(found[1]) for one in calls if (found := _SOURCE.search(one.text))}


def _is_awaited(
    view: LogView, told: Sequence[LogEvent], receiving: set[int], *, is_named: bool
) -> bool:
    """Return whether a receiver waits for the very micro-batch that was left out, by its notes.

    Where neither they nor its code name whom it receives from, that is the stage beside it.
    """
    journals = read_journals(view)
    owner = told[0].rank
    places = {(event.artifact, event.row) for event in told}
    notes = journals.get(owner, Journal()).notes
    left = {
        (note.item, note.what)
        for at, note in enumerate(notes)
        if (note.event.artifact, note.event.row) in places
        and _is_left_out(note)
        and not any(_is_sent_again(later, note) for later in notes[at + 1 :])
    }
    last = [journals[rank].notes for rank in receiving if rank in journals]
    return any(_waits_for(notes, left, owner, is_named=is_named) for notes in last if notes)


def _is_left_out(note: Note) -> bool:
    return note.state == "left out" and note.item >= 0


def _is_sent_again(later: Note, note: Note) -> bool:
    """Return whether a rank sent the same one after all, or is in the next round of them."""
    is_send = later.is_made and later.way == "send" and later.what == note.what
    return is_send and 0 <= later.item <= note.item


def _waits_for(
    notes: Sequence[Note], left: set[tuple[int, str]], owner: int, *, is_named: bool
) -> bool:
    """Return whether the last note of a rank is of a micro-batch that nobody sends.

    A rank that left it out as well, before, does so in each round: this one is another round.
    """
    last = notes[-1]
    own = {(note.item, note.what) for note in notes if _is_left_out(note)}
    peer = last.peer if last.peer >= 0 else find_neighbour(last.rank, last.what, "recv")
    is_owner = owner == peer or (is_named and last.peer < 0)
    is_open = last.state != "over" and last.way != "send"
    return is_open and is_owner and (last.item, last.what) in left - own
