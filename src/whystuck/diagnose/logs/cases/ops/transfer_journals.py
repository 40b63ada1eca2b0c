"""What each rank notes of sends and receives, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

MADE = frozenset({"made", "over"})
Key = tuple[int, int, str, str]
_MAX_TEXT = 60


@dataclass(frozen=True)
class Note:
    """What a rank says of one transfer; ``peer`` is -1 where it names nobody.

    ``item`` is the micro-batch; it is -1 where none is told, as where a step is over. ``numbers``
    are all that tell which transfer it is.
    """

    rank: int
    item: int
    numbers: str
    what: str
    way: str
    peer: int
    state: str
    event: LogEvent

    @property
    def key(self) -> Key:
        """What both halves of one transfer have in common; the last tells which one it is."""
        ends = (self.rank, self.peer) if self.way == "send" else (self.peer, self.rank)
        return (*ends, self.what, self.numbers)

    @property
    def line(self) -> str:
        """The beginning of the line of the log."""
        return self.event.text.strip()[:_MAX_TEXT]


def read_journals(view: LogView) -> dict[int, list[Note]]:
    """Return the notes of each rank; a stage counts as a rank where nothing else is told."""
    events = list(view.list_signatures("table.transfer"))
    stages = {int(event.groups["stage"]) for event in events if event.groups["stage"]}
    is_one_each = stages == set(range(len(stages))) and view.world_size in (0, len(stages))
    seats: dict[int, set[int]] = {}
    for event in events:
        if event.rank >= 0 and event.groups["stage"]:
            seats.setdefault(int(event.groups["stage"]), set()).add(event.rank)
    is_same = all(ranks == {stage} for stage, ranks in seats.items())
    journals: dict[int, list[Note]] = {}
    for event in sorted(events, key=lambda one: (one.artifact, one.row)):
        told = event.groups
        rank = (
            int(told["stage"]) if event.rank < 0 and is_one_each and told["stage"] else event.rank
        )
        peer = int(told["peer"] or -1)
        peers = {peer} if is_same or peer < 0 else seats.get(peer, set())
        if rank < 0 or len(peers) != 1 or rank in peers:
            continue
        note = Note(
            rank,
            int(told["item"] or -1),
            told["numbers"],
            told["what"],
            told["way"],
            min(peers),
            told["state"],
            event,
        )
        journals.setdefault(rank, []).append(note)
    return journals
