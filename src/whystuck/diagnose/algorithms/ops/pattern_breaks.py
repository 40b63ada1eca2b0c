"""Breaks of habit that the peers did not share: who left the path that all had followed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from whystuck.diagnose.algorithms.ops.alignment import Clash, align
from whystuck.diagnose.algorithms.ops.call_patterns import (
    BROKEN,
    UNKNOWN,
    CallPattern,
    PatternBreak,
)
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Collectives, IntColumn

_SURE_PEERS = 2
_FLIPPED = {
    DivergenceKind.SKIPPED: DivergenceKind.EXTRA,
    DivergenceKind.EXTRA: DivergenceKind.SKIPPED,
}
_NO_ROWS: IntColumn = np.empty(0, dtype=np.int64)
_OTHER_HALF = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class PatternDivergence:
    """A group in which some ranks broke their habit at one op, and others went on as ever.

    ``seq`` is the first number that differs; ``seq`` is -1 for transfers, which have none in
    common. ``row`` is that of the first rank's break, ``expected_row`` an earlier one of the call
    that was expected; ``is_clear`` and ``is_ahead`` as in a `PatternBreak`. Members that went on as
    ever without a call in this group have no value in ``rows``.
    """

    group: GroupOps
    way: DivergenceKind | None
    seq: int
    broken: tuple[int, ...]
    true: tuple[int, ...]
    rows: Mapping[int, int]
    row: int
    expected_row: int
    is_clear: bool = True
    is_ahead: bool = False

    @property
    def is_transfer(self) -> bool:
        """Whether one half of a transfer was left out."""
        return self.seq < 0


def compare_lapses(
    table: Collectives,
    groups: Iterable[GroupOps],
    habits: Mapping[int, CallPattern],
    lapses: Iterable[PatternBreak],
) -> list[PatternDivergence]:
    """Keep the breaks of habit that other members of the group did not share.

    What all members do at the same place, such as an evaluation now and then, is no mistake.

    Args:
        table: All ops.
        groups: The groups of the table.
        habits: The habits by rank.
        lapses: Breaks of them.

    Returns:
        One value for each break and group, the oldest first.
    """
    groups = tuple(groups)
    owners = _Owners(groups)
    lapse_by_place = {(lapse.rank, lapse.index): lapse for lapse in lapses}
    found: dict[tuple[int, int, DivergenceKind | None], PatternDivergence] = {}
    for lapse in lapse_by_place.values():
        if _is_known_to_others(table, owners, lapse):
            lapse = replace(lapse, way=DivergenceKind.SKIPPED, is_ahead=True, is_clear=False)  # noqa: PLW2901
        # Of two calls that changed places, the group of the one that came too late is judged.
        row = lapse.row if lapse.way is DivergenceKind.EXTRA else lapse.expected_row
        group = owners.find(row, lapse.rank)
        if group is None:
            continue
        if table.is_p2p[row]:
            parted = _compare_transfers(table, group, habits, lapse)
        else:
            parted = _compare_members(table, group, habits, lapse, lapse_by_place, groups)
        if parted is not None:
            found.setdefault((id(group), parted.seq, parted.way), parted)
    return sorted(found.values(), key=lambda parted: int(table.created_ns[parted.row]))


def _is_known_to_others(table: Collectives, owners: _Owners, lapse: PatternBreak) -> bool:
    """Tell whether a call that seems one too many is one that other members have made before.

    Then they come to it again, and the rank that is there is ahead.
    """
    if lapse.way is not DivergenceKind.EXTRA or lapse.is_clear or table.is_p2p[lapse.row]:
        return False
    group = owners.find(lapse.row, lapse.rank)
    last_seq = _find_last(table, group, lapse) if group is not None else None
    if group is None or not last_seq:
        return False
    form, site = table.form[lapse.row], table.site[lapse.row]
    return any(
        bool(
            ((table.form[rows] == form) & (table.site[rows] == site))[
                table.seq[rows] <= last_seq
            ].any()
        )
        for rank, rows in group.rows_by_rank.items()
        if rank != lapse.rank
    )


class _Owners:
    """Finds the group to which a row belongs."""

    def __init__(self, groups: Iterable[GroupOps]) -> None:
        self._groups = tuple(groups)

    def find(self, row: int, rank: int) -> GroupOps | None:
        """Return the group of a row of a rank."""
        for group in self._groups:
            for rows in (group.rows_by_rank.get(rank), group.p2p_by_rank.get(rank)):
                if rows is not None and _has(rows, row):
                    return group
        return None


def _has(rows: IntColumn, row: int) -> bool:
    return bool((rows == row).any())


def _compare_members(
    table: Collectives,
    group: GroupOps,
    habits: Mapping[int, CallPattern],
    lapse: PatternBreak,
    lapses: Mapping[tuple[int, int], PatternBreak],
    groups: Sequence[GroupOps],
) -> PatternDivergence | None:
    last_seq = _find_last(table, group, lapse)
    if last_seq is None:
        return None
    broken, true, rows = [lapse.rank], [], {lapse.rank: lapse.row}
    for rank in group.members - {lapse.rank}:
        habit = habits.get(rank)
        if habit is None:
            continue
        own = group.rows_by_rank.get(rank, _NO_ROWS)
        span = _find_span(table, own, last_seq, habit)
        if span.stop <= span.start and lapse.way is DivergenceKind.EXTRA:
            span = _find_passed(table, groups, habit, lapse)
        states = habit.states[span]
        at = np.flatnonzero(states == BROKEN)
        if len(at):
            theirs = lapses.get((rank, span.start + int(at[0])))
            if theirs is None or theirs.way is not lapse.way:
                return None
            broken.append(rank)
            rows[rank] = theirs.row
        elif span.stop <= span.start or (states == UNKNOWN).any():
            continue
        else:
            true.append(rank)
            following = own[table.seq[own] == last_seq + 1]
            if len(following):
                rows[rank] = int(following[0])
    if not true:
        return None
    return PatternDivergence(
        group,
        lapse.way,
        last_seq + 1,
        tuple(sorted(broken)),
        tuple(sorted(true)),
        rows,
        lapse.row,
        lapse.expected_row,
        lapse.is_clear,
        lapse.is_ahead,
    )


def _find_last(table: Collectives, group: GroupOps, lapse: PatternBreak) -> int | None:
    """Return the number of the last op of a group before a break; None where it is lost."""
    mine = group.rows_by_rank[lapse.rank]
    earlier = mine[mine < lapse.row]
    if len(earlier):
        return int(table.seq[earlier[-1]])
    is_first = len(mine) > 0 and int(table.seq[mine[0]]) == 1
    return 0 if is_first and lapse.way is DivergenceKind.EXTRA else None


def _find_passed(
    table: Collectives, groups: Sequence[GroupOps], habit: CallPattern, lapse: PatternBreak
) -> slice:
    """Return the calls by which a rank came past the place of a call that another one made.

    They end with an op of a group of both that the other rank had not come to.
    """
    found = slice(0, 0)
    for group in groups:
        own, theirs = (group.rows_by_rank.get(one) for one in (habit.rank, lapse.rank))
        if own is None or theirs is None:
            continue
        earlier = theirs[theirs < lapse.row]
        if len(earlier):
            span = _find_span(table, own, int(table.seq[earlier[-1]]), habit)
            found = span if span.stop > span.start and span.start >= found.start else found
    return found


def _find_span(table: Collectives, own: IntColumn, last_seq: int, habit: CallPattern) -> slice:
    """Return the calls of a rank after its op of a number, up to its next one in the group.

    Empty while the rank has not issued that next one: it may yet do what others did.
    """
    seqs = table.seq[own]
    if not last_seq:
        return slice(0, 0)
    place = int(np.searchsorted(seqs, last_seq))
    if place + 1 >= len(own) or int(seqs[place]) != last_seq:
        return slice(0, 0)
    return slice(int(own[place]) - habit.start + 1, int(own[place + 1]) - habit.start + 1)


def _compare_transfers(
    table: Collectives, group: GroupOps, habits: Mapping[int, CallPattern], lapse: PatternBreak
) -> PatternDivergence | None:
    """Ask whether the rank at the other end of a transfer that was left out left it out too."""
    form = table.forms[int(table.form[lapse.expected_row])]
    position = form.target if form.op == "send" else form.source
    if lapse.way is not DivergenceKind.SKIPPED or not 0 <= position < len(group.ordered):
        return None
    peer = group.ordered[position]
    habit = habits.get(peer)
    if habit is None or habit.breaks or form.op not in _OTHER_HALF:
        return None
    rows = _find_halves(table, group, peer, (_OTHER_HALF[form.op], form.source, form.target))
    pending = [row for row in rows if not table.done[row]] or rows[-1:]
    if not pending:
        return None
    return PatternDivergence(
        group,
        DivergenceKind.SKIPPED,
        -1,
        (lapse.rank,),
        (peer,),
        {lapse.rank: lapse.row, peer: pending[0]},
        lapse.row,
        lapse.expected_row,
    )


def _find_halves(
    table: Collectives, group: GroupOps, rank: int, key: tuple[str, int, int]
) -> Sequence[int]:
    found = []
    for row in group.p2p_by_rank.get(rank, np.empty(0, dtype=np.int64)).tolist():
        form = table.forms[int(table.form[row])]
        if (form.op, form.source, form.target) == key:
            found.append(row)
    return found


def make_divergence(
    table: Collectives, parted: PatternDivergence, others: Sequence[PatternDivergence] = ()
) -> Divergence | None:
    """Put a break of habit in the form of a divergence; None for transfers and for changed order.

    Args:
        table: All ops.
        parted: The group, and who broke its habit there.
        others: The breaks in all groups: the same one in another group has the same cause.

    Returns:
        The divergence. Where most members broke their habit together, the others are at fault.
    """
    if parted.way is None or parted.is_transfer:
        return None
    way, culprits, true = parted.way, set(parted.broken), set(parted.true)
    rows = dict(parted.rows)
    is_flipped = len(culprits) > len(true) and way is not DivergenceKind.LEFT
    # What a rank has always done tells who left it out; a call that is new, not who lacks it.
    is_even = len(culprits) == len(true)
    is_tied = is_even and _is_doubtful(parted, way)
    if is_flipped:
        way, culprits, true = _FLIPPED.get(way, way), true, culprits
    elif not is_tied:
        for other in others:
            if _is_alike(table, parted, other):
                culprits, true = culprits | set(other.broken), true | set(other.true)
                rows |= other.rows
    is_sure = len(true) >= _SURE_PEERS and parted.is_clear and not parted.is_ahead
    sure = Confidence.CERTAIN if is_sure else Confidence.LIKELY
    alignment = align(table, parted.group)
    everybody = tuple(sorted(culprits | true))
    return Divergence(
        way=way,
        alignment=alignment,
        culprits=everybody if is_tied else tuple(sorted(culprits)),
        others=() if is_tied else tuple(sorted(true - culprits)),
        seq=parted.seq,
        rows=rows,
        hard_seq=parted.seq,
        hard_rows=rows,
        clash=Clash.OP,
        confidence=Confidence.POSSIBLE if is_tied else sure,
        is_tied=is_tied,
        is_even=is_even,
        is_ahead=parted.is_ahead and not is_flipped,
    )


def _is_doubtful(parted: PatternDivergence, way: DivergenceKind) -> bool:
    """Return whether it may as well be the other half of the members that broke a pattern."""
    is_unclear = not parted.is_clear if parted.is_ahead else way is not DivergenceKind.SKIPPED
    is_open = way is not DivergenceKind.LEFT and (parted.is_ahead or len(parted.true) > 1)
    return is_unclear and is_open


def _is_alike(table: Collectives, parted: PatternDivergence, other: PatternDivergence) -> bool:
    """Tell whether two breaks are one mistake in two groups: equal calls, of different ranks."""
    if other.way is not parted.way or other.group is parted.group or other.is_transfer:
        return False
    if len(other.broken) > len(other.true) or set(other.broken) & set(parted.broken):
        return False
    pairs = ((parted.row, other.row), (parted.expected_row, other.expected_row))
    return all(
        table.site[one] == table.site[two] and table.form[one] == table.form[two]
        for one, two in pairs
    )
