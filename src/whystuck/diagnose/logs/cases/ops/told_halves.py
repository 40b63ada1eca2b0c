"""H110 and H109 by the sends and receives that ranks print as they make them.

Each line tells one half of a transfer: `mb=7 recv act from 2 ...`. The last one of a rank, where it
does not say that it is over, is what the rank waits in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.positions import is_transferring
from whystuck.diagnose.logs.cases.ops.transfer_journals import MADE, Key, Note, read_journals
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MAX_LINES = 6
# What stands further apart in a log may have lines between that are not looked at.
_NEAR_ROWS = 200
_HALVES = MADE | {"waiting"}
_TRANSFERS = {"SEND", "RECV", "COALESCED", ""}


@dataclass
class _Halves:
    """All halves that are printed, and what ranks wait in at the end."""

    by_rank: dict[int, list[Note]] = field(default_factory=dict)

    @property
    def pending(self) -> dict[int, Note]:
        """The half that each rank waits in."""
        last = {rank: halves[-1] for rank, halves in self.by_rank.items()}
        return {rank: half for rank, half in last.items() if half.state != "over"}

    def list_posted(self, kind: str) -> set[Key]:
        """Return the transfers of which one half was made."""
        found = (half for halves in self.by_rank.values() for half in halves)
        return {half.key for half in found if half.way == kind}


def make_told_halves(view: LogView) -> Iterator[Case]:
    """Make the case of a rank that left out a half which its peer waits for, or of a ring.

    A rank is past a half where it has received what it was to send on, or has sent what comes
    later, and is at another transfer by now. Who waits before that half is a victim.
    """
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    is_told = any((event.groups.get("op") or "") in _TRANSFERS for event in waits)
    stacks = [one.main for one in view.evidence.stacks if one.main is not None]
    if not (is_told or any(is_transferring(one.frames) for one in stacks)):
        return
    halves = _read_halves(view)
    missing = list(_list_missing(halves))
    due = [one for one in missing if _is_past(halves, one)]
    if len({one.peer for one in due}) == 1:
        yield _tell_left_out(halves, due[0], waits)
        return
    if due:
        return
    if ring := _find_ring(halves.pending):
        yield _tell_ring(ring, waits)
        return
    silent = [one for one in missing if one.peer not in halves.pending]
    is_waiting = {event.rank for event in waits}
    if len({one.peer for one in silent}) == 1 and silent[0].peer not in is_waiting:
        yield _tell_left_out(halves, silent[0], waits)


def _read_halves(view: LogView) -> _Halves:
    """Read what ranks print of transfers whose peer they name."""
    found = {
        rank: [note for note in notes if note.peer >= 0 and note.state in _HALVES]
        for rank, notes in read_journals(view).items()
    }
    return _Halves({rank: halves for rank, halves in found.items() if halves})


def _list_missing(halves: _Halves) -> Iterator[Note]:
    """Yield what ranks wait in whose other half is not printed, where such halves are.

    Both ends must have printed an earlier transfer alike: else they write of it in other words.
    """
    sends, receives = halves.list_posted("send"), halves.list_posted("recv")
    for half in halves.pending.values():
        theirs = sends if half.way == "recv" else receives
        shared = {key[:3] for key in sends & receives}
        if half.key not in theirs and half.key[:3] in shared:
            yield half


def _is_past(halves: _Halves, half: Note) -> bool:
    """Tell whether the peer of a rank that waits is past the half that it was to make."""
    own = halves.by_rank.get(half.peer, [])
    if not own or half.way != "recv":
        return False
    for place, one in enumerate(own[:-1]):
        is_input = one.way == "recv" and (one.what, one.numbers) == (half.what, half.numbers)
        is_later = one.way == "send" and one.key[:3] == half.key[:3] and _comes_later(one, half)
        if (is_input or is_later) and _is_elsewhere(own[place + 1 :], one):
            return True
    last = own[-1]
    return last.way == "send" and last.key[:3] == half.key[:3] and _comes_later(last, half)


def _is_elsewhere(later: Sequence[Note], one: Note) -> bool:
    """Tell whether a rank went on to what comes behind a transfer, soon after it.

    To receive the next one of its kind may be begun before this one is sent on.
    """
    is_near = later[0].event.row - one.event.row <= _NEAR_ROWS
    return is_near and any(
        two.what != one.what or (two.way == "send" and _comes_later(two, one)) for two in later
    )


def _comes_later(one: Note, other: Note) -> bool:
    """Tell whether an item has a larger number than another one, all before it being the same."""
    first, second = one.numbers.split(","), other.numbers.split(",")
    return (
        bool(one.numbers and other.numbers)
        and first[:-1] == second[:-1]
        and len(first) == len(second)
        and int(first[-1]) > int(second[-1])
    )


def _find_ring(pending: Mapping[int, Note]) -> list[Note]:
    """Return the halves of ranks that wait for each other in a ring, all of one kind."""
    for begin in sorted(pending):
        seen = [begin]
        while (peer := pending[seen[-1]].peer) in pending and peer not in seen:
            seen.append(peer)
        ring = [pending[rank] for rank in seen]
        is_alike = len({(one.way, one.what, one.numbers) for one in ring}) == 1
        if pending[seen[-1]].peer == begin and len(ring) >= _PAIR and is_alike:
            return ring
    return []


def _tell_left_out(halves: _Halves, half: Note, waits: list[LogEvent]) -> Case:
    """Tell of the rank that never made the half which another one waits for."""
    rank, name = half.peer, "send" if half.way == "recv" else "receive"
    last = halves.by_rank[rank][-1] if rank in halves.by_rank else None
    now = f'; the last that it printed is "{last.line}"' if last is not None else ""
    pending = halves.pending
    lines = [half.event, *(one.event for one in halves.by_rank.get(rank, [])[-2:])]
    lines += [one.event for one in pending.values()]
    return Case(
        code=codes.P2P_UNMATCHED,
        summary=f'rank {rank} never posted the {name} that rank {half.rank} waits for ("'
        f'{half.line}"){now}',
        tier=PARTED - 1,
        ranks=(rank,),
        victims=tuple(sorted({*pending, *(one.rank for one in waits)} - {rank, -1})),
        lines=_keep_first(lines, waits),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"pair": [half.rank, rank], "op": half.way, "waiting_rank": half.rank},
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
