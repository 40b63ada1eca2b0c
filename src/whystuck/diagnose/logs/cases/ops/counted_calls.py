"""H127, H102 and H101 by counts of calls that somebody prints of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.algorithms.stacks.positions import Doing, Position, locate, name_call
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# Two ranks that differ tell nothing: either may be wrong.
_LEAST = 3
# Who waits for a call can be no more of them ahead than are in flight.
_MOST_APART = 16
_MAX_LINES = 6
# What is counted where no op is named.
_ANY = "collectives"
_WAITING = {Doing.COLLECTIVE, Doing.BACKWARD}


@dataclass(frozen=True)
class _Table:
    """How many calls of an op each rank made, the number of most of them, and who differs."""

    op: str
    events: Mapping[int, LogEvent]
    counts: Mapping[int, int]
    common: int
    odd: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks that made as many calls as most."""
        return tuple(sorted(self.counts.keys() - set(self.odd)))


def make_counted_calls(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks that made fewer calls of an op than all others, or more.

    A job must hang: counts of one that runs differ all the time. Who made fewer and waits in
    another call, or made more of another one, has left one out; who waits in none has not come.
    """
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    at = {rank: locate(one.main.frames) for rank, one in last.items() if one.main is not None}
    tables = [
        table
        for table in _list_tables(view)
        if not _wait_together(table, waits)
        if waits
        or any(event.groups.get("stuck") for event in table.events.values())
        or any(one.doing in _WAITING for one in at.values())
    ]
    behind = [one for one in tables if all(one.counts[rank] < one.common for rank in one.odd)]
    ahead = [one for one in tables if all(one.counts[rank] > one.common for rank in one.odd)]
    if behind:
        went_on = any(one.odd == behind[0].odd for one in ahead)
        yield _tell_behind(behind[0], waits, at, went_on=went_on)
    elif ahead:
        yield _tell_ahead(ahead[0], waits, at)


def _list_tables(view: LogView) -> Iterator[_Table]:
    """Yield the tables in which most ranks have one number, and few another one."""
    tables: dict[tuple[str, str], dict[int, LogEvent]] = {}
    for event in view.list_signatures("table.calls"):
        rows = tables.setdefault((event.artifact, event.groups["table"]), {})
        rows[int(event.groups["own"])] = event
    for events in tables.values():
        counts = {rank: int(event.groups["count"]) for rank, event in events.items()}
        common, _ = Counter(counts.values()).most_common(1)[0]
        odd = tuple(sorted(rank for rank, count in counts.items() if count != common))
        is_near = all(abs(counts[rank] - common) <= _MOST_APART for rank in odd)
        if len(counts) >= _LEAST and 0 < 2 * len(odd) < len(counts) and is_near:
            op = next(iter(events.values())).groups["op"]
            yield _Table(op, events, counts, common, odd)


def _tell_behind(
    table: _Table, waits: list[LogEvent], at: Mapping[int, Position], *, went_on: bool
) -> Case:
    """Tell of ranks that made fewer calls: they left one out, or have not come to it."""
    who, verb = name_ranks(table.odd), "makes" if len(table.odd) == 1 else "make"
    seen = [rank for rank in table.odd if rank in at]
    gone = [rank for rank in seen if _is_past(table, at, rank)]
    is_skipped = bool(gone) or went_on or _wait_apart(table, waits)
    now = at[gone[0]] if gone else None
    went = f" and went on to {_describe(now)}" if now is not None else ""
    where = f"; {who} is in {_describe(at[seen[0]])}" if seen and not gone else ""
    made = f"{table.counts[table.odd[0]]} calls of {table.op}, where all others made {table.common}"
    return Case(
        code=codes.SKIPPED_COLLECTIVE if is_skipped else codes.RANK_NEVER_JOINED,
        summary=f"{who} left out a call: it made {made}{went}"
        if is_skipped
        else f"{who} made {made}: it did not come to the last one{where}",
        tier=PARTED - 1 if is_skipped else PARTED,
        ranks=table.odd,
        victims=table.others,
        lines=_cite(table, waits),
        where=tuple(
            place for rank in seen for place in make_places(rank, at[rank].frames, len(seen))
        ),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"skipped": table.op, "went_on_to": _describe(now) if now is not None else ""}
        if is_skipped
        else {"state": "unknown", "missing": list(table.odd), "ready": list(table.others)},
        remedies=(f"see which condition on {who} {verb} one call of {table.op} fewer",)
        if is_skipped
        else (),
    )


def _tell_ahead(table: _Table, waits: list[LogEvent], at: Mapping[int, Position]) -> Case:
    """Tell of ranks that made more calls: nobody else came to the last one."""
    who = name_ranks(table.odd)
    is_seen = any(at[rank].doing in _WAITING for rank in table.odd if rank in at)
    is_told = is_seen or bool(set(list_ranks(waits)) & set(table.odd))
    return Case(
        code=codes.EXTRA_COLLECTIVE,
        summary=f"{who} made {table.counts[table.odd[0]]} calls of {table.op}, where all others "
        f"made {table.common}: nobody else came to the last one",
        tier=PARTED - 1,
        ranks=table.odd,
        victims=table.others,
        lines=_cite(table, waits),
        where=tuple(
            place
            for rank in table.odd
            if rank in at
            for place in make_places(rank, at[rank].frames, 1)
        ),
        time=find_time(waits),
        confidence=Confidence.LIKELY if is_told else Confidence.POSSIBLE,
        details={"ops": {}, "group": "", "sequence": table.common + 1},
    )


def _is_past(table: _Table, at: Mapping[int, Position], rank: int) -> bool:
    """Tell whether a rank waits in another call than those that made more calls."""
    own = at[rank]
    theirs = {at[one].user for one in table.others if one in at}
    if own.doing not in _WAITING or own.user in theirs:
        return False
    counted, called = _simplify(table.op).removesuffix("s"), _simplify(name_call(own.frames))
    return bool(theirs) or not (_ANY.startswith(counted) or called.startswith(counted))


def _wait_together(table: _Table, waits: list[LogEvent]) -> bool:
    """Tell whether a rank that differs gave up the same op as others: it has come to it."""
    ops = [(event.rank in table.odd, _name_op(event)) for event in waits if event.groups.get("seq")]
    return not {op for is_odd, op in ops if is_odd}.isdisjoint(op for odd, op in ops if not odd)


def _name_op(event: LogEvent) -> tuple[str, str, str]:
    op, seq, size = (event.groups.get(name) or "" for name in ("op", "seq", "nin"))
    return op, seq, size


def _simplify(op: str) -> str:
    return op.replace("_", "").replace("-", "").lower()


def _wait_apart(table: _Table, waits: list[LogEvent]) -> bool:
    """Tell whether the odd ranks gave up another op, or another size of it, than all others."""
    ops: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    for event in waits:
        if event.groups.get("op"):
            what = event.groups.get("op") or "", event.groups.get("nin") or ""
            ops[event.rank in table.odd].add(what)
    return bool(ops[True] and ops[False]) and ops[True].isdisjoint(ops[False])


def _describe(position: Position) -> str:
    user = position.user
    call = name_call(position.frames) if position.doing in _WAITING else position.doing.value
    return f"{call} in {describe_place(user)}" if user is not None else call


def _cite(table: _Table, waits: list[LogEvent]) -> tuple[LogEvent, ...]:
    """Return the lines with the counts, those of the odd ranks first."""
    order = sorted(table.events, key=lambda rank: rank not in table.odd)
    told = [table.events[rank] for rank in order]
    lines = {(event.artifact, event.row): event for event in (*told, *waits)}
    return tuple(lines.values())[:_MAX_LINES]
