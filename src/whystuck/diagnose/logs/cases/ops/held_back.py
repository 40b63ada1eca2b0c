"""H123 by printed entries of flight recorders: one rank is still in an op that is over for others.

Where every member gives a part and gets one, peers can only be past the op when each gave its own.
What the rank still has to do is its own: its device does not get on. The others are in a later op,
which waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.names import find_op_name, needs_all
from whystuck.evidence.ranks import name_ranks

_OVER = "completed"
_LEAST_PEERS = 2
_MAX_LINES = 6

_Table = dict[int, dict[int, LogEvent]]


def make_held_back(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks whose op is not over, where it is over for all others shown."""
    groups: dict[str, _Table] = {}
    for event in view.list_signatures("table.entry"):
        # Where rows are counted, entries of one number may be of different calls.
        if event.rank >= 0 and not event.groups.get("is_counted"):
            table = groups.setdefault(event.groups["group"], {})
            table.setdefault(event.rank, {})[int(event.groups["seq"][:18])] = event
    for name, table in groups.items():
        case = _judge(name, table)
        if case is not None:
            yield case
            return


def _judge(name: str, table: Mapping[int, Mapping[int, LogEvent]]) -> Case | None:
    oldest = {rank: _find_oldest(entries) for rank, entries in table.items()}
    pending = {rank: seq for rank, seq in oldest.items() if seq >= 0}
    if not pending:
        return None
    seq = min(pending.values())
    ranks = tuple(sorted(rank for rank, at in pending.items() if at == seq))
    shown = {rank: table[rank][seq] for rank in table if rank not in ranks and seq in table[rank]}
    is_over = all(one.groups["state"] == _OVER for one in shown.values())
    peers = shown | _list_past(table, seq, {*ranks, *shown})
    ops = {find_op_name(one.groups["op"].lower()) for one in shown.values()}
    ops |= {find_op_name(table[rank][seq].groups["op"].lower()) for rank in ranks}
    # Who has a later op that is not over waits; a job that runs has none such on all others.
    are_waiting = all(pending.get(rank, -1) > seq for rank in table if rank not in ranks)
    is_mutual = len(ops) == 1 and needs_all(min(ops))
    is_few = len(peers) >= max(_LEAST_PEERS, len(ranks) + 1)
    if not (is_few and is_over and are_waiting and is_mutual):
        return None
    lines = [*(table[rank][seq] for rank in ranks), *peers.values()]
    op, state = min(ops), table[ranks[0]][seq].groups["state"]
    return Case(
        code=codes.DEVICE_STALLED,
        summary=f"the device of {name_ranks(ranks)} does not finish {op} {seq} (it is {state}), "
        f"which {name_ranks(sorted(peers))} completed, and which they wait behind",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(peers)),
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(lines),
        confidence=Confidence.LIKELY,
        details={"group": name, "sequence": seq, "op": op, "state": state},
    )


def _list_past(
    table: Mapping[int, Mapping[int, LogEvent]], seq: int, but: Collection[int]
) -> dict[int, LogEvent]:
    """Return an entry of each rank that tells that so many ops are over; theirs is not shown."""
    done = {
        rank: one
        for rank, entries in table.items()
        for one in entries.values()
        if _read_done(one) >= seq
    }
    return {rank: one for rank, one in done.items() if rank not in but}


def _read_done(entry: LogEvent) -> int:
    text = (entry.groups.get("done") or "")[:18]
    return int(text) if text.isdecimal() else -1


def _find_oldest(entries: Mapping[int, LogEvent]) -> int:
    """Return the number of the first op that is not over, -1 where all are."""
    return min((seq for seq, one in entries.items() if one.groups["state"] != _OVER), default=-1)
