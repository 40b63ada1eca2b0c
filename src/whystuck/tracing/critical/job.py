"""The critical path of a job: where a rank waited for others, it goes on with the last to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column, whole_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.clocks import Clocks, estimate_clocks
from whystuck.tracing.collectives.matched import Matching
from whystuck.tracing.collectives.matching import match_calls
from whystuck.tracing.collectives.rank_calls import CALLS as COLLECTIVES
from whystuck.tracing.critical.calls import find_calls
from whystuck.tracing.critical.chains import NAME as CHAINS
from whystuck.tracing.critical.kinds import KIND_NAMES, PathKind
from whystuck.tracing.metric import CrossMetric

Rows = NDArray[Any]

PATH, SUMMARY = "job_critical_path", "job_critical_summary"
# Ends of one collective differ by some µs on its ranks: so much more than the shortest is no wait.
_NO_WAIT_NS = 2_000
_COMM, _UNKNOWN = KIND_NAMES[PathKind.COMM], KIND_NAMES[PathKind.UNKNOWN]


@dataclass(frozen=True)
class _Part:
    """A part of the path, on the clock of the job."""

    rank: int
    start: int
    end: int
    kind: str
    name: str


@dataclass(frozen=True)
class _Way:
    """One way back on a rank, as rows of its table."""

    first: int
    last: int
    parent: int
    from_end: bool


class _RankWays:
    """The ways back on a rank, with times on the clock of the job."""

    def __init__(self, one: RankTables, shift: int, known: Mapping[str, Rows]) -> None:
        self.rank = one.header.rank
        self.table = one.tables[CHAINS]
        self.shift = shift
        chain = self.table["chain"]
        self.first = np.searchsorted(chain, np.arange(int(chain[-1]) + 2))
        heads = self.first[:-1]
        self.calls = {
            "start_ns": self.table["call_start_ns"][heads],
            "end_ns": self.table["call_end_ns"][heads],
        }
        # The collective of each way, and the way of each collective.
        self.row = np.full(len(heads), -1, dtype=np.int64)
        self.way_of = np.full(len(known.get("start_ns", ())), -1, dtype=np.int64)
        if len(self.way_of):
            self.row = find_calls(known, self.calls)
            ways = np.flatnonzero(self.row >= 0)
            self.way_of[self.row[ways]] = ways

    @property
    def last(self) -> int:
        """The way that leads to the last event."""
        return len(self.first) - 2

    @property
    def begin(self) -> int:
        """The first time on any way."""
        return int(self.table["start_ns"].min()) + self.shift

    @property
    def end(self) -> int:
        """The last time of all."""
        return int(self.table["end_ns"].max()) + self.shift

    def way(self, number: int) -> _Way:
        """Return a way by its number."""
        first, last = int(self.first[number]), int(self.first[number + 1])
        table = self.table
        return _Way(first, last, int(table["parent"][first]), bool(table["from_end"][first]))

    def parts_before(self, way: _Way, until: int) -> Iterator[_Part]:
        """Yield the parts of a way before a time, the last first."""
        table = self.table
        for row in range(way.last - 1, way.first - 1, -1):
            start = int(table["start_ns"][row]) + self.shift
            end = min(int(table["end_ns"][row]) + self.shift, until)
            if end > start:
                yield _Part(self.rank, start, end, table["kind"][row], table["name"][row])


class _Meetings:
    """The collectives in which ranks wait for each other, by the calls of each."""

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.where: list[Rows] = [
            np.full((len(one), 2), -1, dtype=np.int64) for one in matching.ranks
        ]
        for number, group in enumerate(matching.groups):
            meets = np.flatnonzero(matching.meets(group))
            for turn, rank in enumerate(group.rank.tolist()):
                rows = group.rows[turn, meets]
                there = rows >= 0
                self.where[rank][rows[there], 0] = number
                self.where[rank][rows[there], 1] = meets[there]

    def find_last(self, rank: int, row: int) -> tuple[int, int]:
        """Return the rank that came last to the collective of a call, and its call there.

        All end together, so it is the one for which it was shortest; no clock is needed for that.
        A rank that waited hardly longer is taken to be the last itself.
        """
        number, column = self.where[rank][row].tolist()
        if number < 0:
            return rank, row
        group = self.matching.groups[number]
        rows = group.rows[:, column]
        turns = np.flatnonzero(rows >= 0)
        lengths = {}
        for turn in turns.tolist():
            one = int(group.rank[turn])
            columns = self.matching.ranks[one].columns
            at = int(rows[turn])
            lengths[one, at] = float(columns["end_ns"][at] - columns["start_ns"][at])
        best = min(lengths, key=lambda key: lengths[key])
        is_own = lengths[rank, row] <= lengths[best] + _NO_WAIT_NS
        return (rank, row) if is_own else best

    def name(self, rank: int, row: int) -> str:
        """Return what kind of collective a call is, and of which group."""
        number = int(self.where[rank][row, 0])
        kind = self.matching.kinds[int(self.matching.ranks[rank].kind[row])]
        group = self.matching.groups[number].name if number >= 0 else ""
        return f"{kind.op} {group}".strip()


def measure_job(ranks: Sequence[RankTables], options: TraceOptions) -> Mapping[str, Table]:
    """Find what the time from the first event of a job to the last was spent on, and on which rank.

    It goes back from the last event of all. At the end of a collective it goes on with the rank
    that came last: that rank's transfer is on the path, and what it did before; the waits of others
    are not. Times are on the clock of the lowest rank and count from the first event.

    Args:
        ranks: Their tables.
        options: Not used.

    Returns:
        The parts in order of time, which cover all of it, and their sums by rank and kind.
    """
    del options
    given = [one for one in ranks if len(one.tables.get(CHAINS, Table()))]
    parts = _find_path(given) if given else []
    return {PATH: _list_parts(parts), SUMMARY: _sum_parts(parts)}


def _find_path(given: Sequence[RankTables]) -> list[_Part]:
    matching = match_calls(given)
    clocks = estimate_clocks(matching)
    place = {one.header.rank: number for number, one in enumerate(matching.ranks)}
    ways: dict[int, _RankWays] = {}
    for one in given:
        number = place.get(one.header.rank, -1 - len(ways))
        shift = one.header.base_ns - matching.zero_ns
        if number >= 0:
            shift -= round(float(clocks.offset_ns[number]))
        known = matching.ranks[number].columns if number >= 0 else {}
        ways.setdefault(number, _RankWays(one, shift, known))
    linked = _choose_linked(clocks, list(ways))
    return _walk({one: ways[one] for one in linked}, _Meetings(matching))


def _choose_linked(clocks: Clocks, ranks: Sequence[int]) -> list[int]:
    """Choose ranks whose clocks can be compared: the most that collectives link."""
    parts: dict[int, list[int]] = {}
    for rank in ranks:
        parts.setdefault(int(clocks.part[rank]) if rank >= 0 else rank, []).append(rank)
    return max(parts.values(), key=len)


def _walk(ways: Mapping[int, _RankWays], meetings: _Meetings) -> list[_Part]:
    begin = min(one.begin for one in ways.values())
    at = max(ways, key=lambda one: ways[one].end)
    time, number = ways[at].end, ways[at].last
    made: list[_Part] = []
    # Each step leads to an earlier way or to another rank; a bound all the same, for odd clocks.
    for _ in range(sum(len(one.first) for one in ways.values()) + len(ways)):
        own = ways[at]
        way = own.way(number)
        for part in own.parts_before(way, time):
            made.append(part)
            time = part.start
        if way.parent < 0:
            break
        number = way.parent
        if way.from_end:
            at, number, part = _cross(ways, meetings, (at, number, time))
            if part.end > part.start:
                made.append(part)
                time = part.start
    if time > begin:
        made.append(_Part(ways[at].rank, begin, time, _UNKNOWN, ""))
    return _join_alike(made[::-1], begin)


def _join_alike(made: Sequence[_Part], begin: int) -> list[_Part]:
    """Count times from the first event, and make one of neighbours that differ in nothing."""
    joined: list[_Part] = []
    for one in made:
        start, end = one.start - begin, one.end - begin
        last = joined[-1] if joined else None
        if last and (last.rank, last.kind, last.name) == (one.rank, one.kind, one.name):
            joined[-1] = _Part(one.rank, last.start, end, one.kind, one.name)
        else:
            joined.append(_Part(one.rank, start, end, one.kind, one.name))
    return joined


def _cross(
    ways: Mapping[int, _RankWays], meetings: _Meetings, where: tuple[int, int, int]
) -> tuple[int, int, _Part]:
    """Go from the end of a collective to the rank that came last, and to its arrival there."""
    at, number, time = where
    row = int(ways[at].row[number])
    name = ""
    if row >= 0 and at >= 0:
        name = meetings.name(at, row)
        other, other_row = meetings.find_last(at, row)
        way = int(ways[other].way_of[other_row]) if other in ways else -1
        if way >= 0:
            at, number = other, way
    own = ways[at]
    start = int(own.calls["start_ns"][number]) + own.shift
    return at, number, _Part(own.rank, min(start, time), time, _COMM, name)


def _list_parts(parts: Sequence[_Part]) -> Table:
    return Table(
        {
            "rank": whole_column([one.rank for one in parts]),
            "start_ns": whole_column([one.start for one in parts]),
            "end_ns": whole_column([one.end for one in parts]),
            "kind": text_column([one.kind for one in parts]),
            "name": text_column([one.name for one in parts]),
        }
    )


def _sum_parts(parts: Sequence[_Part]) -> Table:
    sums: dict[tuple[int, str], int] = {}
    for one in parts:
        key = one.rank, one.kind
        sums[key] = sums.get(key, 0) + one.end - one.start
    total = max(sum(sums.values()), 1)
    rows = sorted(sums.items(), key=lambda item: -item[1])
    shares: Column = np.array([length / total for _, length in rows], dtype=np.float64)
    return Table(
        {
            "rank": whole_column([rank for (rank, _), _ in rows]),
            "kind": text_column([kind for (_, kind), _ in rows]),
            "sum_ns": whole_column([length for _, length in rows]),
            "share": shares,
        }
    )


CROSS_METRIC = CrossMetric(names=(PATH, SUMMARY), needs=(CHAINS, COLLECTIVES), measure=measure_job)
