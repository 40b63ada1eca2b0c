"""What each rank notes of sends and receives, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MADE = frozenset({"made", "over", "begun"})


@dataclass(frozen=True)
class Note:
    """What a rank says of one transfer; ``peer`` is -1 where it names nobody.

    ``item`` is the micro-batch, or the last number that tells which transfer it is; -1 where none
    does, as where a step is over.
    """

    rank: int
    item: int
    what: str
    way: str
    peer: int
    state: str
    event: LogEvent

    @property
    def is_made(self) -> bool:
        """Whether it was made, or at least begun."""
        return self.state in _MADE

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits in it, as far as it says."""
        return self.state in {"waiting", "begun"}


@dataclass
class Journal:
    """The notes of one rank in their order."""

    notes: list[Note] = field(default_factory=list)

    def list_items(self, what: str, way: str, peer: int) -> list[int]:
        """List the items of the last round of transfers with a peer."""
        items: list[int] = []
        for note in self.notes:
            key = note.what, note.way, note.peer
            if key != (what, way, peer) or not note.is_made or note.item < 0:
                continue
            if items and note.item <= items[-1]:
                items = []  # the next step counts from the first one again
            items.append(note.item)
        return items

    def find_waiting(self) -> Note | None:
        """Return the transfer that is waited for: the last note, where it says so."""
        last = self.notes[-1] if self.notes else None
        return last if last is not None and last.is_waiting and last.peer >= 0 else None

    def open_last(self) -> None:
        """Take the last transfer for one that is only begun, unless it is said to be over."""
        if self.notes and self.notes[-1].state == "made":
            self.notes[-1] = replace(self.notes[-1], state="begun")


def read_journals(view: LogView) -> dict[int, Journal]:
    """Return the notes of each rank; a stage counts as a rank where nothing else is told."""
    events = list(view.list_signatures("table.transfer"))
    stages = {int(event.groups["stage"]) for event in events if event.groups["stage"]}
    # Of ranks that write nothing else, the number of those that are known may be too small.
    is_one_each = stages == set(range(len(stages))) and view.world_size <= len(stages)
    seats: dict[int, set[int]] = {}
    for event in events:
        if event.rank >= 0 and event.groups["stage"]:
            seats.setdefault(int(event.groups["stage"]), set()).add(event.rank)
    is_same = all(ranks == {stage} for stage, ranks in seats.items())
    journals: dict[int, Journal] = {}
    for event in sorted(events, key=lambda one: (one.artifact, one.row)):
        told = event.groups
        rank = (
            int(told["stage"]) if event.rank < 0 and is_one_each and told["stage"] else event.rank
        )
        peer = int(told["peer"] or -1)
        peers = {peer} if is_same or peer < 0 else seats.get(peer, set())
        if rank < 0 or len(peers) != 1 or rank in peers:
            continue
        item = int(told["item"] or told["numbers"].rpartition(",")[2] or -1)
        note = Note(rank, item, told["what"], told["way"], min(peers), told["state"], event)
        journals.setdefault(rank, Journal()).notes.append(note)
    if are_neighbours(journals):
        for journal in journals.values():
            journal.notes = [
                replace(note, peer=find_neighbour(note.rank, note.what, note.way))
                if note.way and note.peer < 0
                else note
                for note in journal.notes
            ]
    return journals


def are_neighbours(journals: Mapping[int, Journal]) -> bool:
    """Tell whether all peers that are noted are neighbours: activations go on, gradients back.

    Where no peer is noted, the ranks tell it: the first one receives no activations, the last one
    sends none, and all others do both; for gradients it is the other way round.
    """
    moved = [note for one in journals.values() for note in one.notes if note.way]
    told = [note for note in moved if note.peer >= 0]
    if told:
        return all(note.peer == find_neighbour(note.rank, note.what, note.way) for note in told)
    ways = {(note.rank, note.what, note.way) for note in moved}
    stages = range(len(journals))
    return all(note.what for note in moved) and ways == {
        (rank, what, way)
        for rank in stages
        for what in {note.what for note in moved}
        for way in ("recv", "send")
        if find_neighbour(rank, what, way) in stages
    }


def find_neighbour(rank: int, what: str, way: str) -> int:
    """Return the stage that a stage sends to or receives from, where ranks count the stages."""
    return rank + (1 if (what == "act") == (way == "send") else -1)
