"""Which call of one rank is the same collective as which call of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.aligning import Aligned, align_calls
from whystuck.tracing.collectives.clocks import estimate_clocks
from whystuck.tracing.collectives.matched import GroupCalls, Matching
from whystuck.tracing.collectives.members import IS_DIGEST, read_members
from whystuck.tracing.collectives.ops import MEETING_OPS, PAIR_OPS
from whystuck.tracing.collectives.rank_calls import (
    CALLS,
    GroupForm,
    Kind,
    Whole,
    read_rank,
    slim_calls,
)

_ABSENT = -1
# A number that stands for more calls than this on average numbers something else than calls.
_MOST_CALLS_OF_NUMBER = 4


@dataclass
class _Open:
    """A group while its calls are gathered."""

    form: GroupForm
    size: int
    is_assumed: bool = False
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
    kinds: dict[Kind, int] = {}
    groups: dict[int, _Open] = {}
    given = _choose_ranks(ranks, made)
    # In the middle, so that one clock that is years off does not cost the others their precision.
    bases = sorted(one.header.base_ns for one in given) or [0]
    made.zero_ns = bases[len(bases) // 2]
    for one in given:
        made.ranks.append(read_rank(one, made.zero_ns, kinds))
    made.kinds = list(kinds)
    for place in range(len(given)):
        _add_groups(groups, made, place)
    many_groups = any(len(one.header.groups) > 1 for one in given)
    world = max([len(given), *(one.header.world_size for one in given)])
    unequal: list[_Open] = []
    for key in sorted(groups):
        opened = groups[key]
        opened.is_assumed = not (opened.form.name or opened.form.members)
        if opened.is_assumed and many_groups:
            _drop(made, opened, "the trace does not tell the group")
            continue
        if opened.is_assumed:
            opened.size = world
        if not _match_group(made, opened):
            unequal.append(opened)
    _match_unequal(made, unequal)
    made.groups.sort(key=lambda one: (len(one.name), one.name, one.members, one.size))
    return made


def _match_unequal(made: Matching, unequal: list[_Open]) -> None:
    """Match the groups whose ranks made other calls, with what the others tell of clocks."""
    if not unequal:
        return
    clocks = estimate_clocks(made)
    for opened in unequal:
        rank = np.array(opened.ranks)
        known = np.where(np.isnan(clocks.error_ns[rank]), np.nan, clocks.offset_ns[rank])
        # Clocks that nothing links cannot be compared.
        parts, count = np.unique(clocks.part[rank][~np.isnan(known)], return_counts=True)
        part = parts[np.argmax(count)] if len(parts) else -1
        known = np.where(clocks.part[rank] == part, known, np.nan)
        _add_group(made, opened, _match_order(made, opened, known.tolist()))


def _choose_ranks(ranks: Sequence[RankTables], made: Matching) -> list[RankTables]:
    """Leave out what has no rank, and all but the first trace of a rank."""
    chosen: dict[int, RankTables] = {}
    for given in sorted(ranks, key=lambda one: (one.header.rank, one.header.artifact)):
        one = slim_calls(given)
        calls = len(one.tables[CALLS]) if CALLS in one.tables else 0
        rank = one.header.rank
        if rank < 0 and calls:
            made.gaps[rank, "", "the trace tells no rank"] += calls
        elif rank in chosen:
            made.gaps[rank, "", "another trace of the same rank is there"] += calls
        elif rank >= 0:
            chosen[rank] = one
    return list(chosen.values())


def _add_groups(groups: dict[int, _Open], made: Matching, place: int) -> None:
    """Put the collectives of a rank into its groups, by start; sends and receives into none."""
    calls = made.ranks[place]
    if not len(calls):
        return
    is_pair = np.array([kind.op in PAIR_OPS for kind in made.kinds], dtype=np.bool_)
    rows = np.flatnonzero(~is_pair[calls.kind])
    group = calls.columns["group"][rows]
    start = calls.columns["start_ns"][rows]
    by_group = np.lexsort((start, group))
    rows, group = rows[by_group], group[by_group]
    unique, first = np.unique(group, return_index=True)
    ends = np.append(first[1:], len(group))
    for one, begin, end in zip(unique.tolist(), first.tolist(), ends.tolist(), strict=True):
        form = calls.groups[one]
        opened = groups.setdefault(form.key, _Open(form, form.size))
        opened.ranks.append(place)
        opened.rows.append(rows[begin:end])


def _drop(made: Matching, opened: _Open, reason: str) -> None:
    for rank, rows in zip(opened.ranks, opened.rows, strict=True):
        made.gaps[made.ranks[rank].header.rank, opened.form.name, reason] += len(rows)


def _match_group(made: Matching, opened: _Open) -> bool:
    """Match the calls of a group; say whether that could be done without knowing clocks."""
    if opened.size > 0 and len(opened.ranks) > opened.size:
        _drop(made, opened, "more ranks than members use this name for a group")
        return True
    calls = list(zip((made.ranks[rank] for rank in opened.ranks), opened.rows, strict=True))
    numbers = [one.columns["number"][rows] for one, rows in calls]
    if all(_is_numbered(one) for one in numbers):
        _add_group(made, opened, _match_numbers(opened, numbers))
        return True
    kinds = [one.kind[rows] for one, rows in calls]
    is_equal = all(np.array_equal(one, kinds[0]) for one in kinds)
    if is_equal:
        _add_group(made, opened, _match_order(made, opened, None))
    return is_equal


def _add_group(made: Matching, opened: _Open, rows: Whole) -> None:
    rows = _drop_other_kinds(made, opened, rows)
    if not rows.shape[1]:
        return
    first = np.argmax(rows >= 0, axis=0)
    ranks = np.array(opened.ranks, dtype=np.int64)
    kind = np.empty(rows.shape[1], dtype=np.int64)
    number = np.empty(rows.shape[1], dtype=np.int64)
    for place in np.unique(first).tolist():
        mine = first == place
        calls = made.ranks[opened.ranks[place]]
        kind[mine] = calls.kind[rows[place, mine]]
        number[mine] = calls.columns["number"][rows[place, mine]]
    is_sequence = (number >= 0) & (number < IS_DIGEST)
    sequence = np.where(is_sequence, number, np.arange(rows.shape[1]))
    made.groups.append(
        GroupCalls(
            opened.form.name,
            opened.form.desc,
            read_members(opened.form.members),
            opened.size,
            ranks,
            rows.astype(np.int32),
            kind,
            sequence,
            opened.is_assumed,
        )
    )


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
    if (every < IS_DIGEST).all():
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


def _match_order(made: Matching, opened: _Open, clocks: list[float] | None) -> Whole:
    calls = list(zip((made.ranks[rank] for rank in opened.ranks), opened.rows, strict=True))
    kinds = [one.kind[rows] for one, rows in calls]
    is_meeting = np.array([kind.op in MEETING_OPS for kind in made.kinds], dtype=np.bool_)
    ends = [one.take("end_ns", rows) for one, rows in calls]
    aligned: Aligned = align_calls(kinds, ends, is_meeting, clocks)
    rows = np.full(aligned.place.shape, _ABSENT, dtype=np.int64)
    for place, (one, own) in enumerate(calls):
        found = aligned.place[place]
        rows[place] = np.where(found >= 0, own[found], _ABSENT)
        missing = len(own) - int((found >= 0).sum())
        if missing:
            made.gaps[one.header.rank, opened.form.name, aligned.reasons[place]] += missing
    return rows


def _drop_other_kinds(made: Matching, opened: _Open, rows: Whole) -> Whole:
    """Leave out collectives in which ranks did different things; all calls of which are gaps."""
    low = np.full(rows.shape[1], np.iinfo(np.int32).max, dtype=np.int32)
    high = np.full(rows.shape[1], _ABSENT, dtype=np.int32)
    for place, rank in enumerate(opened.ranks):
        kind = made.ranks[rank].kind[rows[place]]
        is_there = rows[place] >= 0
        low = np.where(is_there, np.minimum(low, kind), low)
        high = np.where(is_there, np.maximum(high, kind), high)
    is_same = low == high
    for place, rank in enumerate(opened.ranks):
        count = int((rows[place][~is_same] >= 0).sum())
        if count:
            reason = "ranks did different things under one number"
            made.gaps[made.ranks[rank].header.rank, opened.form.name, reason] += count
    return rows[:, is_same]
