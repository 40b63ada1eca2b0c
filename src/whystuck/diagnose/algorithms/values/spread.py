"""Where values that are not finite appear first, and where they have only been passed on."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.inspection import Inspection, NotFinite, ScalerUpdate

# What decides on an update where no scaler does.
GUARD = "guard"
_ANY = -1
# Options of a SPEC that leave out some of what is given or got.
_CHOICE = re.compile(r"(?:finite|stats):[^,]{0,100}(?:rate|ops|min|max)=")


@dataclass(frozen=True)
class Origin:
    """The first ops with values that are not finite: one of each rank that had them first.

    Either all of them are inputs, which the ranks gave, or all are outputs of ops into which no
    rank that was looked at has given any. ``members`` are the ranks of their group, all ranks that
    were looked at when they are not known. ``is_partial`` tells that tensors of some sizes, or some
    ops, were not looked at, or some members.
    """

    first: tuple[NotFinite, ...]
    inspected: frozenset[int]
    members: frozenset[int]
    is_partial: bool = False

    @property
    def is_made_by_op(self) -> bool:
        """Whether ops have made them of finite values."""
        return self.first[0].side == "out"

    @property
    def is_everywhere(self) -> bool:
        """Whether all ranks have them at the same time, so that none of them is the source."""
        all_of_them = self.members if self.is_made_by_op else self.inspected
        return len(all_of_them) > 1 and {one.rank for one in self.first} >= all_of_them


def find_members(evidence: Evidence) -> dict[str, frozenset[int]]:
    """Return the ranks of each group, as op logs tell them."""
    found: dict[str, frozenset[int]] = {}
    for team in evidence.ops.teams:
        found[team.name] = found.get(team.name, frozenset()) | frozenset(team.members)
    return found


def find_origin(
    inspections: Iterable[Inspection], members_by_group: Mapping[str, frozenset[int]]
) -> Origin | None:
    """Find the ranks that had values which are not finite before they could get them from others.

    Args:
        inspections: What was seen of each rank.
        members_by_group: The ranks of each group that is known, by its name.

    Returns:
        The first ops of those ranks, or None when all values are finite.
    """
    looked = list(inspections)
    seen = _list_events(looked)
    given = [event for events in seen.values() for event in events if event.side == "in"]
    ops = {event.op for event in given}
    sends = _group_by_peer(given)
    begin = [events[0] for events in seen.values() if events]
    events = [event for event in begin if event.side == "in" or event.op not in ops]
    events = _drop_received(events, sends) or events
    if not events:
        return None
    step = min(event.step for event in events)
    early = [event for event in events if event.step == step]
    first = [event for event in early if not any(_comes_before(one, event) for one in early)]
    side = min(first, key=lambda one: (one.time_ns, one.side)).side
    first = [event for event in first if event.side == side]
    inspected = frozenset(seen)
    members = members_by_group.get(first[0].group, inspected)
    is_partial = not members <= inspected or any(_CHOICE.search(one.spec) for one in looked)
    return Origin(tuple(first), inspected, members, is_partial)


def _list_events(looked: Sequence[Inspection]) -> dict[int, list[NotFinite]]:
    """Return what of each rank was not finite, in order, save what all of them skip.

    An update that one rank skips and another makes spreads the values all the same.
    """
    parts = []
    for one in looked:
        skips = _Skips(one.scaler)
        ordered = sorted(one.not_finite, key=lambda event: (event.number, event.side))
        parts.append((one.rank, [(event, skips.covers(event.number)) for event in ordered]))
    used = {
        event.op
        for _, events in parts
        for event, is_skipped in events
        if not (is_skipped or event.is_p2p)
    }
    return {
        rank: [event for event, is_skipped in events if event.op in used or not is_skipped]
        for rank, events in parts
    }


class _Skips:
    """The ops of a rank that belong to updates which are skipped, or may yet be.

    Gradients that overflow are how a scaler finds its scale. A check of the job tells at once.
    """

    def __init__(self, updates: Iterable[ScalerUpdate]) -> None:
        by_series: dict[tuple[str, int, int], list[ScalerUpdate]] = {}
        self._last: int | None = None
        for row in updates:
            if row.source != GUARD:
                self._last = max(row.last_op, self._last or 0)
            if row.first_op <= row.last_op:
                key = row.source, row.series, row.generation
                by_series.setdefault(key, []).append(row)
        self._parts = [(rows, [row.first_op for row in rows]) for rows in by_series.values()]

    def covers(self, number: int) -> bool:
        """Return whether the op of a number is one of them."""
        found = [
            rows[place]
            for rows, begins in self._parts
            if (place := bisect_right(begins, number) - 1) >= 0 and number <= rows[place].last_op
        ]
        if found:
            return any(row.is_skipped for row in found)
        return self._last is not None and number > self._last


def _group_by_peer(given: Iterable[NotFinite]) -> dict[tuple[int, int], NotFinite]:
    """Return the first send with such values of each rank to each other one."""
    sends: dict[tuple[int, int], NotFinite] = {}
    for event in given:
        if event.peer >= 0:
            key = event.rank, event.peer
            sends[key] = min(sends.get(key, event), event, key=lambda one: one.number)
    return sends


def _drop_received(
    events: list[NotFinite], sends: dict[tuple[int, int], NotFinite]
) -> list[NotFinite]:
    """Leave out ranks that had received such values from a peer before."""
    by_peer: dict[int, list[NotFinite]] = {}
    for (_, peer), send in sends.items():
        by_peer.setdefault(peer, []).append(send)
    return [
        event
        for event in events
        if not any(
            _is_passed_on(send, event, sends.get((event.rank, send.rank)))
            for send in by_peer.get(event.rank, ())
        )
    ]


def _is_passed_on(send: NotFinite, event: NotFinite, back: NotFinite | None) -> bool:
    """Tell whether a rank had received what a peer sent before its own op.

    It may have asked long before it was sent, as a schedule of a pipeline does: then each of the
    two seems to have had it from the other (``back``), and the clocks tell.
    """
    if not _is_asked_for(send, event):
        return False
    is_mutual = back is not None and _is_asked_for(back, send)
    return not is_mutual or send.time_ns < event.time_ns


def _is_asked_for(send: NotFinite, event: NotFinite) -> bool:
    """Tell whether the receive of a send was issued before an op of the rank that it goes to."""
    asked = event.received.get(send.rank, 0) + event.received.get(_ANY, 0)
    return 0 < send.passed <= asked


def _comes_before(one: NotFinite, event: NotFinite) -> bool:
    """Tell whether an op of another rank has passed its values on before this one."""
    if one.group != event.group or one.is_p2p or event.is_p2p:
        return False
    return one.seq < event.seq


def is_ordered(first: Sequence[NotFinite]) -> bool:
    """Tell whether ops are the same one, so that none of them can follow from another."""
    return len({one.op for one in first}) == 1 and (len(first) == 1 or not first[0].is_p2p)
