"""Sends and receives that did not meet long before the end: who broke its habit, and kept going.

A backend of the host takes a send that nobody receives yet. One to the wrong peer, or one too many,
shows at the end alone: its receiver has all that it wants and is gone, and a rank that sends to it,
or waits for what it did not get, loses its connection. All of them came back to their habits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from whystuck.diagnose.algorithms.ops.call_patterns import KNOWN, CallPattern
from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.transfers.odd_transfers import Oddity, OddTransfer
from whystuck.diagnose.algorithms.transfers.pairs import find_peer
from whystuck.evidence.ops.collectives import Collectives, OpForm

# A break in the middle leaves less than half of the calls on either side.
TORN_SHARE = 0.35


def find_odd_end(
    table: Collectives,
    groups: Sequence[GroupOps],
    cut: Collection[int],
    habits: Mapping[int, CallPattern],
) -> OddTransfer | None:
    """Find the one rank that broke its habit in a transfer, of those whose end is in question.

    Args:
        table: All ops.
        groups: The groups of the table.
        cut: Ranks that lost a connection.
        habits: The habits of all parties: of these ranks, and of those that had ended well.

    Returns:
        None where nobody or several broke a habit, or no rank was cut off in a transfer: a transfer
        that both ranks made for the first time breaks the habits of both.
    """
    waits = _list_open(table, groups, cut)
    broken = _find_breaks(table, habits)
    if len(broken) != 1 or not waits:
        return None
    ((rank, index),) = broken.items()
    habit = habits[rank]
    if not (habit.states[index + 1 :] == KNOWN).any():
        return None  # what it did last is judged by what waits
    oddity = _name_oddity(table, habit, index, is_cut=rank in cut)
    if oddity is None:
        return None
    wait = min(waits, key=lambda one: (rank not in one.missing, one.rank == rank, one.rank))
    row, expected_row = _find_rows(habit, index)
    return OddTransfer(oddity, (rank,), wait, row, expected_row)


def _find_breaks(table: Collectives, habits: Mapping[int, CallPattern]) -> dict[int, int]:
    """Find the first break of each rank that has to do with transfers, and is its own.

    Between the same two collectives, all may go on to another part of the job.
    """
    found: dict[int, dict[int, int]] = {}
    for rank, habit in habits.items():
        for index in habit.breaks:
            row, expected_row = _find_rows(habit, index)
            if table.is_p2p[row] or table.is_p2p[expected_row]:
                before = int((~table.is_p2p[habit.start : row]).sum())
                is_free = bool(table.is_p2p[expected_row])
                found.setdefault(rank, {}).setdefault(index, -1 if is_free else before)
    shared = [set(places.values()) - {-1} for places in found.values()]
    common = set.intersection(*shared) if len(found) == len(habits) and shared else set()
    own = {
        rank: [index for index, place in places.items() if place not in common]
        for rank, places in found.items()
    }
    return {rank: min(indexes) for rank, indexes in own.items() if indexes}


def _find_rows(habit: CallPattern, index: int) -> tuple[int, int]:
    """Return what a rank did where it broke its habit, and an earlier one of what it does."""
    return habit.start + index, habit.start + habit.find_before(index)


def _name_oddity(
    table: Collectives, habit: CallPattern, index: int, *, is_cut: bool
) -> Oddity | None:
    """Tell another peer from a half too many, or too few; None where it is none of these.

    Who left out a half for another rank ends well; who made one too many is cut off in the end.
    """
    row, expected_row = _find_rows(habit, index)
    did, usual = _form(table, row), _form(table, expected_row)
    is_transfer, was_transfer = bool(table.is_p2p[row]), bool(table.is_p2p[expected_row])
    if is_transfer and was_transfer and did.op == usual.op and _goes_on(habit, index):
        is_same = (did.source, did.target) == (usual.source, usual.target)
        return None if is_same else Oddity.PEER
    if is_cut:
        return Oddity.TOO_MANY if is_transfer else None
    return Oddity.LEFT_OUT if was_transfer else None


def _goes_on(habit: CallPattern, index: int) -> bool:
    """Tell whether the call behind the odd one is that which came behind the usual one."""
    before = habit.find_before(index)
    return index + 1 < len(habit.calls) and habit.calls[index + 1] == habit.calls[before + 1]


def _list_open(table: Collectives, groups: Sequence[GroupOps], cut: Collection[int]) -> list[Wait]:
    """Return the last transfer of each rank that was cut off in it."""
    waits = []
    for group in groups:
        for rank in sorted(set(group.p2p_by_rank) & set(cut)):
            open_rows = [row for row in group.p2p_by_rank[rank].tolist() if not table.done[row]]
            row = open_rows[-1] if open_rows else NO_ROW
            form = _form(table, row) if open_rows else None
            peer = find_peer(group, form.op, form.source, form.target) if form else None
            if peer is not None:
                seq = int(table.seq[row])
                waits.append(Wait(rank, group, seq, row, frozenset({peer}), is_p2p=True))
    return waits


def _form(table: Collectives, row: int) -> OpForm:
    return table.forms[int(table.form[row])]
