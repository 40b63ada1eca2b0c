"""H103 by ranks that lose a peer: it said that its data ended, and they made further steps."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks, stands_before
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_ENDS = ("data.ended", "loop.ended")


def make_gone_peers(view: LogView) -> Iterator[Case]:
    """Make the case of a rank whose data ended before that of others, who then lost it.

    With the process of rank 0, its store goes: the others say that they lost that. At the end of a
    job that is well, they do so, too; but then none of them is further than who left.
    """
    lost = [event for event in view.events if _is_loss(event)]
    losers = set(list_ranks(lost))
    if not losers or any(is_said(event) for event in view.list_signatures(*WAITS)):
        return
    failed = {item.rank for item in view.exceptions} | view.ended_ranks
    steps = {event.rank: event for event in view.list_signatures("table.rank_step")}
    ends = _list_ends(view, lost)
    gone = {rank: event for rank, event in ends.items() if rank in steps}
    if len(gone) != 1 or losers & ends.keys() or failed & {*gone, -1}:
        return
    (rank, end) = next(iter(gone.items()))
    last = _read(steps[rank])
    further = [
        one
        for one in losers
        if one in steps and _read(steps[one]) > last and stands_before(end, [steps[one]])
    ]
    if not further or any(view.list_signatures("job.done")):
        return
    most = max(further, key=lambda one: _read(steps[one]))
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"rank {rank} had no more data at step {last} and left, while rank {most} went on "
        f"to step {_read(steps[most])}: {name_ranks(sorted(losers))} lost it",
        tier=PARTED - 1,
        ranks=(rank,),
        victims=tuple(sorted(losers)),
        lines=(end, steps[most], *lost)[:_MAX_LINES],
        time=find_time([end]),
        entails=tuple(lost),
    )


def _is_loss(event: LogEvent) -> bool:
    return event.code == codes.PEER_LOST and event.role == "cascade" and is_said(event)


def _list_ends(view: LogView, lost: list[LogEvent]) -> dict[int, LogEvent]:
    """Return the ranks that said that they are past their data, before others lost a peer."""
    found: dict[int, LogEvent] = {}
    for event in view.list_signatures(*_ENDS):
        named = event.groups.get("who") or ""
        rank = int(named) if named.isdecimal() else event.rank
        if rank >= 0 and is_said(event) and not event.is_past and stands_before(event, lost):
            found.setdefault(rank, event)
    return found


def _read(event: LogEvent) -> int:
    return int(event.groups["step"])
