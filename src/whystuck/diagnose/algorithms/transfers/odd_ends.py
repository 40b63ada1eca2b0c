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
    broken = {rank: habit for rank, habit in habits.items() if habit.breaks}
    if len(broken) != 1 or not waits:
        return None
    ((rank, habit),) = broken.items()
    if not (habit.states[habit.breaks[0] + 1 :] == KNOWN).any():
        return None  # what it did last is judged by what waits
    oddity = _name_oddity(table, habit, is_cut=rank in cut)
    if oddity is None:
        return None
    wait = min(waits, key=lambda one: (rank not in one.missing, one.rank == rank, one.rank))
    row, expected_row = _find_rows(habit)
    return OddTransfer(oddity, (rank,), wait, row, expected_row)


def _find_rows(habit: CallPattern) -> tuple[int, int]:
    """Return what a rank did where it first broke its habit, and an earlier one of what it does."""
    index = habit.breaks[0]
    return habit.start + index, habit.start + habit.find_before(index)


def _name_oddity(table: Collectives, habit: CallPattern, *, is_cut: bool) -> Oddity | None:
    """Tell another peer from a half too many, or too few; None where it is none of these.

    Who left out a half for another rank ends well; who made one too many is cut off in the end.
    """
    row, expected_row = _find_rows(habit)
    did, usual = _form(table, row), _form(table, expected_row)
    is_transfer, was_transfer = bool(table.is_p2p[row]), bool(table.is_p2p[expected_row])
    if is_transfer and was_transfer and did.op == usual.op and _goes_on(habit):
        is_same = (did.source, did.target) == (usual.source, usual.target)
        return None if is_same else Oddity.PEER
    if is_cut:
        return Oddity.TOO_MANY if is_transfer else None
    return Oddity.LEFT_OUT if was_transfer else None


def _goes_on(habit: CallPattern) -> bool:
    """Tell whether the call behind the first odd one is that which came behind the usual one."""
    index = habit.breaks[0]
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
