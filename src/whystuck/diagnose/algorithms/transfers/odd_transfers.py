"""Sends and receives that never meet: which of the two ranks did not do what it always does.

A half without a partner does not tell whose mistake it is: one too many on one rank looks like one
too few on the other. The earlier steps of both tell. A rank that left the order of its calls while
its peer kept to it, or that used another tag than the series of its earlier ones leads to, is the
one to name. Where both did, or neither has a habit, nothing is claimed, save that two tags differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from whystuck.diagnose.algorithms.ops.call_patterns import KNOWN, CallPattern
from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.diagnose.algorithms.transfers.host_pairs import is_logged
from whystuck.diagnose.algorithms.transfers.pairs import find_peer
from whystuck.evidence.ops.collectives import Collectives, OpForm

_OTHER_HALF = {"send": "recv", "recv": "send"}
# So many earlier tags of one line tell how they go on.
_MAX_TAGS = 64
# So many collectives in a row may be left out at once.
_MAX_SKIPPED = 16


class Oddity(Enum):
    """What a rank did that it never did before."""

    PEER = "peer"
    TAG = "tag"
    LEFT_OUT = "left out"
    TOO_MANY = "too many"


# The one that tells more of a rank goes before.
_ORDER = {oddity: place for place, oddity in enumerate(Oddity)}


@dataclass(frozen=True)
class OddTransfer:
    """A transfer that cannot end, and the rank that departed from its habit there.

    ``ranks`` are two only where two tags differ and neither rank has a habit. ``row`` is what
    the first of them did, ``expected_row`` an earlier one of what it always did in its place, or
    ``NO_ROW``; ``other_row`` is the half of the other rank, or ``NO_ROW``. ``expected_tag`` is -1
    where the tags are not what is wrong.
    """

    oddity: Oddity
    ranks: tuple[int, ...]
    wait: Wait
    row: int
    expected_row: int = NO_ROW
    other_row: int = NO_ROW
    expected_tag: int = -1


def find_odd_transfers(
    table: Collectives,
    waits: Iterable[Wait],
    habits: Mapping[int, CallPattern],
    ring: Sequence[int] = (),
) -> tuple[OddTransfer, ...]:
    """Find the transfers that do not end because a rank departed from its habit.

    Args:
        table: All ops.
        waits: What ranks wait in.
        habits: The habits by rank.
        ring: Ranks that wait for each other in a ring: where all of them changed what they do, that
            is a new order, and nobody's alone.

    Returns:
        One value for each such rank; tags are looked at where no other habit was broken.
    """
    stuck = [wait for wait in waits if wait.is_p2p and wait.missing and is_logged(table, wait.row)]
    changed = {rank for rank, habit in habits.items() if _find_break(habit) >= 0}
    is_new = bool(ring) and changed.issuperset(ring)
    # What most ranks do from now on is no departure of one.
    is_new |= 2 * len(changed) > len(habits)
    broken = [] if is_new else list(_find_broken(table, stuck, habits))
    found: dict[int, OddTransfer] = {}
    for odd in sorted(broken or _find_tags(table, stuck), key=lambda one: _ORDER[one.oddity]):
        found.setdefault(odd.ranks[0], odd)
    return tuple(found[rank] for rank in sorted(found))


def _find_broken(
    table: Collectives, stuck: Sequence[Wait], habits: Mapping[int, CallPattern]
) -> Iterator[OddTransfer]:
    for wait in stuck:
        parties = {wait.rank, *wait.missing}
        broken = {rank: at for rank in parties if (at := _find_break(habits.get(rank))) >= 0}
        kept = [rank for rank in parties if _is_kept(habits.get(rank))]
        if len(broken) == 1 and len(kept) == len(parties) - 1:
            ((rank, index),) = broken.items()
            odd = _explain(table, wait, habits[rank], index)
            if odd is not None:
                yield odd


def _find_break(habit: CallPattern | None) -> int:
    """Return where a rank broke its habit without coming back to it; -1 when it did not."""
    if habit is None or not habit.breaks:
        return -1
    last = habit.breaks[-1]
    return -1 if (habit.states[last + 1 :] == KNOWN).any() else last


def _is_kept(habit: CallPattern | None) -> bool:
    return habit is not None and int(habit.states[-1]) == KNOWN


def _explain(table: Collectives, wait: Wait, habit: CallPattern, index: int) -> OddTransfer | None:
    """Say what a rank did in place of what it always did; None when that made nobody wait."""
    before = habit.find_before(index)
    row, expected_row = habit.start + index, habit.start + before
    rank = habit.rank
    is_left_out = rank in wait.missing and _is_half_of(table, expected_row, wait)
    usual = _find_usual(table, row) if table.is_p2p[row] else NO_ROW
    if usual != NO_ROW:
        # In a batch the wrong half may be another one than the first that differs.
        return OddTransfer(Oddity.PEER, (rank,), wait, row, usual, _other(wait, rank))
    if is_left_out:
        return OddTransfer(Oddity.LEFT_OUT, (rank,), wait, row, expected_row, wait.row)
    is_again = bool((habit.calls[:index] == habit.calls[index]).any())
    is_again &= not _may_skip(table, habit, before, index)
    if rank == wait.rank and is_again and _is_same_call(habit, index, wait.row):
        return OddTransfer(Oddity.TOO_MANY, (rank,), wait, wait.row, expected_row)
    return None


def _may_skip(table: Collectives, habit: CallPattern, before: int, index: int) -> bool:
    """Tell whether a rank may have left out collectives, after which a transfer comes by habit."""
    came = habit.calls[index:].tolist()
    expected = habit.calls[before : min(index, before + _MAX_SKIPPED + len(came))].tolist()
    for shift in range(1, min(_MAX_SKIPPED, len(expected)) + 1):
        if table.is_p2p[habit.start + before + shift - 1]:
            return False
        following = expected[shift : shift + len(came)]
        if following and following == came[: len(following)]:
            return True
    return False


def _other(wait: Wait, rank: int) -> int:
    return wait.row if wait.rank != rank else NO_ROW


def _is_same_call(habit: CallPattern, index: int, row: int) -> bool:
    return int(habit.calls[row - habit.start]) == int(habit.calls[index])


def _is_half_of(table: Collectives, row: int, wait: Wait) -> bool:
    """Tell whether an op is the other half of what a rank waits in."""
    form, other = _form(table, row), _form(table, wait.row)
    return bool(table.is_p2p[row]) and (
        (_OTHER_HALF.get(form.op), form.source, form.target)
        == (other.op, other.source, other.target)
        and int(table.group[row]) == int(table.group[wait.row])
    )


def _find_usual(table: Collectives, row: int) -> int:
    """Find an earlier op of the same line whose peers never were the one of this op.

    A line that goes through several peers has had them all before.
    """
    form = _form(table, row)
    earlier = _list_earlier(table, row) if _chain(table, row) else []
    ends = {(_form(table, one).source, _form(table, one).target) for one in earlier}
    is_other = len(ends) == 1 and (form.source, form.target) not in ends
    return earlier[-1] if is_other else NO_ROW


def _list_earlier(table: Collectives, row: int) -> list[int]:
    """Return the earlier ops of a rank that the same line issued: sends, or receives."""
    own = slice_rank(table, int(table.rank[row]))
    rows = np.arange(own.start, row)
    rows = rows[table.is_p2p[rows]]
    site, op = _chain(table, row), _form(table, row).op
    sites = [number for number in np.unique(table.site[rows]) if _chain_of(table, number) == site]
    forms = [number for number in np.unique(table.form[rows]) if table.forms[number].op == op]
    is_same = np.isin(table.site[rows], sites) & np.isin(table.form[rows], forms)
    return [int(one) for one in rows[is_same]]


def _chain(table: Collectives, row: int) -> tuple[tuple[str, int], ...]:
    return _chain_of(table, int(table.site[row]))


def _chain_of(table: Collectives, number: int) -> tuple[tuple[str, int], ...]:
    frames = table.sites[number].frames
    return tuple((frame.file, frame.line) for frame in frames if is_user_frame(frame))


def _form(table: Collectives, row: int) -> OpForm:
    return table.forms[int(table.form[row])]


def _find_tags(table: Collectives, stuck: Sequence[Wait]) -> Iterator[OddTransfer]:
    """Find halves of one pair of ranks that do not meet because their tags differ."""
    for wait in stuck:
        form = _form(table, wait.row)
        peer = find_peer(wait.group, form.op, form.source, form.target)
        if peer is None or form.op not in _OTHER_HALF:
            continue
        theirs = _find_single(table, wait, peer)
        if theirs == NO_ROW:
            continue
        mine = wait.row
        usual = {row: _expect_tag(table, row) for row in (mine, theirs)}
        odd = [row for row, tag in usual.items() if tag not in (-1, _form(table, row).tag)]
        even = [row for row, tag in usual.items() if tag == _form(table, row).tag]
        if len(odd) == len(even) == 1 and not _are_most_new(table):
            rank = int(table.rank[odd[0]])
            yield OddTransfer(Oddity.TAG, (rank,), wait, odd[0], NO_ROW, even[0], usual[odd[0]])
        else:
            ranks = tuple(sorted((wait.rank, peer)))
            yield OddTransfer(
                Oddity.TAG, ranks, wait, mine, NO_ROW, theirs, _form(table, theirs).tag
            )


def _are_most_new(table: Collectives) -> bool:
    """Tell whether the newest tags of most ranks are not those that came next."""
    newest = {int(table.rank[row]): row for row in np.flatnonzero(table.is_p2p).tolist()}
    strayed = [
        row for row in newest.values() if _expect_tag(table, row) not in (-1, _form(table, row).tag)
    ]
    return 2 * len(strayed) > len(newest)


def _find_single(table: Collectives, wait: Wait, peer: int) -> int:
    """Find the newest half of a peer that has another tag, and no partner either."""
    form = _form(table, wait.row)
    mine, theirs = _count(table, wait.rank, wait.row), _count(table, peer, wait.row)
    other = _OTHER_HALF[form.op]
    found = [
        rows[-1]
        for (op, tag), rows in theirs.items()
        if op == other and tag != form.tag and len(rows) > len(mine.get((form.op, tag), ()))
    ]
    return max(found, default=NO_ROW)


def _count(table: Collectives, rank: int, like: int) -> dict[tuple[str, int], list[int]]:
    """Return the rows of a rank between the two ends of an op, by op and tag."""
    ends = _form(table, like).source, _form(table, like).target
    rows: dict[tuple[str, int], list[int]] = {}
    own = slice_rank(table, rank)
    chosen = np.flatnonzero(table.is_p2p[own] & (table.group[own] == table.group[like]))
    for row in (chosen + own.start).tolist():
        form = _form(table, row)
        if (form.source, form.target) == ends:
            rows.setdefault((form.op, form.tag), []).append(row)
    return rows


def _expect_tag(table: Collectives, row: int) -> int:
    """Tell which tag the earlier ones of a line lead to; -1 when they lead to none."""
    form = _form(table, row)
    earlier = (_form(table, one) for one in _list_earlier(table, row))
    ends = form.source, form.target
    tags = [other.tag for other in earlier if (other.source, other.target) == ends]
    return extend(tags[-_MAX_TAGS:])


def extend(tags: Sequence[int]) -> int:
    """Continue a series of tags: one that repeats, or the steps of which repeat.

    Args:
        tags: The series so far.

    Returns:
        The next one; -1 when the series tells none.
    """
    following = _repeat(tags)
    if following is None:
        step = _repeat([after - before for before, after in pairwise(tags)])
        following = None if step is None else tags[-1] + step
    return -1 if following is None else following


def _repeat(values: Sequence[int]) -> int | None:
    """Return what comes next in a series that repeats itself; None where it does not."""
    for period in range(1, len(values) // 2 + 1):
        if values[period:] == values[:-period]:
            return values[-period]
    return None
