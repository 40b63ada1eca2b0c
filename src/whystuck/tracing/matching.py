"""Which call of one rank is the same collective as which call of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table
from whystuck.evidence.trace_tables import RankHeader, RankTables
from whystuck.tracing.aligning import Aligned, align_calls
from whystuck.tracing.collective_ops import MEETING_OPS, PAIR_OPS
from whystuck.tracing.members import read_members

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

CALLS = "collective_calls"
_ABSENT = -1
# A number that stands for more calls than this on average numbers something else than calls.
_MOST_CALLS_OF_NUMBER = 4


@dataclass(frozen=True)
class Kind:
    """What was done: the op, the type of its elements, and its size (-1 where ranks differ)."""

    op: str
    dtype: str
    bytes: int


@dataclass(frozen=True)
class RankCalls:
    """The calls of a rank. Times count from ``zero_ns`` of the `Matching`."""

    header: RankHeader
    columns: Mapping[str, Column]


@dataclass(frozen=True)
class GroupCalls:
    """The collectives of a process group, as far as ranks could be matched.

    ``rank`` are positions in `Matching.ranks`, of those that took part. ``rows`` has a row for
    each of them and a column a collective: the position of its call, -1 when it has none there.
    ``size`` is the number of members, of which some may have left no trace; -1 when unknown.
    """

    name: str
    desc: str
    members: tuple[int, ...]
    size: int
    rank: NDArray[np.int64]
    rows: NDArray[np.int32]
    kind: NDArray[np.int64]
    sequence: Whole
    is_assumed: bool = False


@dataclass
class Matching:
    """The calls of all ranks, matched. ``gaps`` count what could not be: rank, group, reason."""

    ranks: list[RankCalls] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    groups: list[GroupCalls] = field(default_factory=list)
    gaps: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    zero_ns: int = 0

    def gather(self, group: GroupCalls, name: str) -> Real:
        """Return a column of the calls of a group, ranks by collectives; NaN where absent."""
        out = np.empty(group.rows.shape, dtype=np.float64)
        for place, rank in enumerate(group.rank.tolist()):
            rows = group.rows[place]
            values = self.ranks[rank].columns[name]
            out[place] = values[rows] if len(values) else np.nan
        out[group.rows < 0] = np.nan
        return out

    def meets(self, group: GroupCalls) -> NDArray[np.bool_]:
        """Tell the collectives of a group in which each member waits for all others."""
        is_meeting = np.array([kind.op in MEETING_OPS for kind in self.kinds], dtype=np.bool_)
        meets: NDArray[np.bool_] = is_meeting[group.kind] if len(group.kind) else np.empty(0, bool)
        return meets


@dataclass
class _Open:
    """A group while its calls are gathered."""

    name: str
    desc: str
    members: tuple[int, ...]
    size: int
    ranks: list[int] = field(default_factory=list)
    rows: list[Whole] = field(default_factory=list)


def match_calls(ranks: Sequence[RankTables]) -> Matching:
    """Match the collectives of ranks.

    Calls are of one collective when their group is the same, by its name and members, and their
    number in the trace (`Seq` or `Comms Id`). Where traces do not number them, the k-th calls of
    a group belong together, or of a stream where the group is unknown; then all of them must be the
    same op of the same size and end together. Where ranks have other counts, their calls are
    aligned by what they are. A call for which this leaves a doubt is counted in the gaps.

    Sends and receives are not matched here.

    Args:
        ranks: The tables of each rank.

    Returns:
        The matched calls. Neither the order of ranks nor their clocks change it.
    """
    made = Matching()
    kinds: dict[int, int] = {}
    groups: dict[int, _Open] = {}
    given = _choose_ranks(ranks, made)
    # In the middle, so that one clock that is years off does not cost the others their precision.
    bases = sorted(one.header.base_ns for one, _ in given) or [0]
    made.zero_ns = bases[len(bases) // 2]
    many_groups = any(len(one.header.groups) > 1 for one, _ in given)
    for one, table in given:
        _add_rank(made, kinds, groups, (one, table))
    world = max([len(given), *(one.header.world_size for one, _ in given)])
    for key in sorted(groups):
        opened = groups[key]
        is_assumed = not (opened.name or opened.members)
        if is_assumed and many_groups:
            _drop(made, opened, "the trace does not tell the group")
            continue
        if is_assumed:
            opened.size = world
        _match_group(made, opened, is_assumed=is_assumed)
    return made


def _choose_ranks(ranks: Sequence[RankTables], made: Matching) -> list[tuple[RankTables, Table]]:
    """Leave out what has no calls, and all but the first trace of a rank."""
    chosen: dict[int, tuple[RankTables, Table]] = {}
    for one in sorted(ranks, key=lambda one: (one.header.rank, one.header.artifact)):
        table = one.tables.get(CALLS, Table())
        rank = one.header.rank
        if rank < 0 and len(table):
            made.gaps[rank, "", "the trace tells no rank"] += len(table)
        elif rank in chosen:
            made.gaps[rank, "", "another trace of the same rank is there"] += len(table)
        elif rank >= 0:
            chosen[rank] = one, table
    return list(chosen.values())


_KEPT = ("own_ns", "own_compute_ns", "bytes", "in_bytes", "out_bytes", "exposed_ns", "sequence")


def _add_rank(
    made: Matching,
    kinds: dict[int, int],
    groups: dict[int, _Open],
    given: tuple[RankTables, Table],
) -> None:
    one, table = given
    place = len(made.ranks)
    if not len(table):
        made.ranks.append(RankCalls(one.header, {}))
        return
    shift = one.header.base_ns - made.zero_ns
    unique, first, inverse = np.unique(table["kind_key"], return_index=True, return_inverse=True)
    numbers = []
    for key, row in zip(unique.tolist(), first.tolist(), strict=True):
        if key not in kinds:
            kinds[key] = len(made.kinds)
            made.kinds.append(
                Kind(str(table["op"][row]), str(table["dtype"][row]), int(table["bytes"][row]))
            )
        numbers.append(kinds[key])
    kind = np.array(numbers, dtype=np.int32)[inverse]
    launch = table["launch_ns"]
    columns = {
        "kind": kind,
        "number": table["number"],
        "start_ns": table["start_ns"] + shift,
        "end_ns": table["end_ns"] + shift,
        "launch_ns": np.where(launch < 0, np.nan, launch + float(shift)),
        **{name: table[name] for name in _KEPT},
    }
    made.ranks.append(RankCalls(one.header, columns))
    is_pair = np.array([k.op in PAIR_OPS for k in made.kinds], dtype=np.bool_)[kind]
    _add_groups(groups, table, place, np.flatnonzero(~is_pair))


def _add_groups(groups: dict[int, _Open], table: Table, place: int, rows: Whole) -> None:
    key = table["group_key"][rows]
    by_key = np.lexsort((table["start_ns"][rows], key))
    rows, key = rows[by_key], key[by_key]
    unique, first = np.unique(key, return_index=True)
    ends = np.append(first[1:], len(key))
    for one, begin, end in zip(unique.tolist(), first.tolist(), ends.tolist(), strict=True):
        row = rows[begin]
        if one not in groups:
            groups[one] = _Open(
                str(table["group"][row]),
                str(table["group_desc"][row]),
                read_members(str(table["members"][row])),
                int(table["group_size"][row]),
            )
        groups[one].ranks.append(place)
        groups[one].rows.append(rows[begin:end])


def _drop(made: Matching, opened: _Open, reason: str) -> None:
    for rank, rows in zip(opened.ranks, opened.rows, strict=True):
        made.gaps[made.ranks[rank].header.rank, opened.name, reason] += len(rows)


def _match_group(made: Matching, opened: _Open, *, is_assumed: bool) -> None:
    if opened.size > 0 and len(opened.ranks) > opened.size:
        _drop(made, opened, "more ranks than members use this name for a group")
        return
    numbers = _take(made, opened, "number")
    if all(_is_numbered(one) for one in numbers):
        rows = _match_numbers(opened, numbers)
    else:
        rows = _match_order(made, opened)
    rows = _drop_other_kinds(made, opened, rows)
    if not rows.shape[1]:
        return
    first = np.argmax(rows >= 0, axis=0)
    ranks = np.array(opened.ranks, dtype=np.int64)
    kind = np.empty(rows.shape[1], dtype=np.int64)
    sequence = np.empty(rows.shape[1], dtype=np.int64)
    for place in np.unique(first).tolist():
        mine = first == place
        columns = made.ranks[opened.ranks[place]].columns
        kind[mine] = columns["kind"][rows[place, mine]]
        sequence[mine] = columns["sequence"][rows[place, mine]]
    sequence = np.where(sequence >= 0, sequence, np.arange(rows.shape[1]))
    made.groups.append(
        GroupCalls(
            opened.name,
            opened.desc,
            opened.members,
            opened.size,
            ranks,
            rows.astype(np.int32),
            kind,
            sequence,
            is_assumed,
        )
    )


def _take(made: Matching, opened: _Open, name: str) -> list[Column]:
    return [
        made.ranks[rank].columns[name][rows]
        for rank, rows in zip(opened.ranks, opened.rows, strict=True)
    ]


def _is_numbered(numbers: Whole) -> bool:
    return bool((numbers >= 0).all()) and (
        len(np.unique(numbers)) * _MOST_CALLS_OF_NUMBER >= len(numbers)
    )


def _match_numbers(opened: _Open, numbers: list[Whole]) -> Whole:
    """Put the calls of one number below each other: the k-th of it where a rank has several."""
    if all(len(one) == len(numbers[0]) and (one == numbers[0]).all() for one in numbers):
        return np.stack(opened.rows)
    repeats = [_count_repeats(one) for one in numbers]
    width = 1 + max(int(one.max(initial=0)) for one in repeats)
    every, code = np.unique(np.concatenate(numbers), return_inverse=True)
    call = code * width + np.concatenate(repeats)
    places, column = np.unique(call, return_inverse=True)
    # In the order in which they were made, as numbers may be digests.
    turn = np.concatenate([np.arange(len(one)) for one in numbers])
    mean = np.bincount(column, turn) / np.bincount(column)
    if (every <= np.iinfo(np.int32).max).all():
        mean = np.arange(len(places), dtype=np.float64)
    position = np.empty(len(places), dtype=np.int64)
    position[np.argsort(mean, kind="stable")] = np.arange(len(places))
    rows = np.full((len(numbers), len(places)), _ABSENT, dtype=np.int64)
    rank = np.repeat(np.arange(len(numbers)), [len(one) for one in numbers])
    rows[rank, position[column]] = np.concatenate(opened.rows)
    return rows


def _count_repeats(numbers: Whole) -> Whole:
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    repeats = np.empty(len(numbers), dtype=np.int64)
    repeats[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return repeats


def _match_order(made: Matching, opened: _Open) -> Whole:
    kinds = _take(made, opened, "kind")
    is_meeting = np.array([kind.op in MEETING_OPS for kind in made.kinds], dtype=np.bool_)
    ends = _take(made, opened, "end_ns")
    aligned: Aligned = align_calls(kinds, ends, is_meeting)
    rows = np.full(aligned.place.shape, _ABSENT, dtype=np.int64)
    for place, (rank, calls) in enumerate(zip(opened.ranks, opened.rows, strict=True)):
        found = aligned.place[place]
        rows[place] = np.where(found >= 0, calls[found], _ABSENT)
        missing = len(calls) - int((found >= 0).sum())
        if missing:
            rank_number = made.ranks[rank].header.rank
            made.gaps[rank_number, opened.name, aligned.reasons[place]] += missing
    return rows


def _drop_other_kinds(made: Matching, opened: _Open, rows: Whole) -> Whole:
    """Leave out collectives in which ranks did different things; all calls of which are gaps."""
    low = np.full(rows.shape[1], np.iinfo(np.int32).max, dtype=np.int32)
    high = np.full(rows.shape[1], _ABSENT, dtype=np.int32)
    for place, rank in enumerate(opened.ranks):
        kind = made.ranks[rank].columns["kind"][rows[place]]
        is_there = rows[place] >= 0
        low = np.where(is_there, np.minimum(low, kind), low)
        high = np.where(is_there, np.maximum(high, kind), high)
    is_same = low == high
    for place, rank in enumerate(opened.ranks):
        count = int((rows[place][~is_same] >= 0).sum())
        if count:
            reason = "ranks did different things under one number"
            made.gaps[made.ranks[rank].header.rank, opened.name, reason] += count
    return rows[:, is_same]
