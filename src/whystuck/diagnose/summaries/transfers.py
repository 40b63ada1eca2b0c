"""Transfers between two ranks: both ends of each, matched by pair and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from whystuck.diagnose.summaries.ops_view import (
    ABSENT,
    ALL,
    DONE,
    PENDING,
    STARTED,
    UNKNOWN,
    View,
    tell_class,
)
from whystuck.evidence.ops.collectives import NO_PEER, BoolColumn, Collectives, IntColumn
from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.sections import RankClass, Timeline, TimelineOp

_SEND, _RECV = 0, 1
_KINDS = {"send": _SEND, "isend": _SEND, "recv": _RECV, "irecv": _RECV}
_NO_ROW = -1


@dataclass(frozen=True)
class Transfers:
    """One line for each transfer: its group, its two ranks, its number in the pair, its rows.

    ``rows`` has the row of the sender and that of the receiver, ``-1`` where there is none. Where
    the recorder kept no peer, the other rank is ``NO_PEER``.
    """

    group: IntColumn
    source: IntColumn
    target: IntColumn
    number: IntColumn
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of transfers."""
        return len(self.group)


def match_transfers(table: Collectives) -> Transfers:
    """Match the two ends of each transfer.

    Args:
        table: All ops.

    Returns:
        The transfers, by group and pair.
    """
    rows, kind = _find_rows(table)
    if not len(rows):
        nothing = np.empty(0, dtype=np.int64)
        return Transfers(nothing, nothing, nothing, nothing, np.empty((0, 2), dtype=np.int64))
    source, target = _find_ends(table, rows, kind)
    # Ends are -1 or more: shifted by one, the three parts make one number.
    base = int(max(source.max(), target.max())) + 2
    key = (table.group[rows].astype(np.int64) * base + source + 1) * base + target + 1
    unique, pair = np.unique(key, return_inverse=True)
    number = _number(table, rows, pair, kind)
    length = int(number.max()) + 1
    keys, line = np.unique(pair * length + number, return_inverse=True)
    matched = np.full((len(keys), 2), _NO_ROW, dtype=np.int64)
    matched[line.ravel(), kind] = rows
    found = unique[keys // length]
    ends = found % (base * base)
    return Transfers(
        found // (base * base), ends // base - 1, ends % base - 1, keys % length, matched
    )


def _find_ends(table: Collectives, rows: IntColumn, kind: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Turn positions in a group into ranks; the rank itself is one end in any case."""
    longest = max((len(group.members) for group in table.groups), default=0)
    # The last column stays empty, for positions that are not known.
    rank_by_position = np.full((len(table.groups), longest + 1), NO_PEER, dtype=np.int64)
    for number, group in enumerate(table.groups):
        rank_by_position[number, : len(group.members)] = sorted(group.members)
    groups, forms = table.group[rows], table.form[rows]
    ends = []
    for mine, positions in (
        (_SEND, [form.source for form in table.forms]),
        (_RECV, [form.target for form in table.forms]),
    ):
        position = np.array(positions, dtype=np.int64)[forms]
        is_inside = (position >= 0) & (position < longest)
        known = rank_by_position[groups, np.where(is_inside, position, longest)]
        # Without members, a position is taken for a rank.
        other = np.where(known == NO_PEER, position, known)
        ends.append(np.where(kind == mine, table.rank[rows], other))
    return ends[0], ends[1]


def find_ends(table: Collectives) -> tuple[IntColumn, IntColumn]:
    """Find the two ranks of each transfer.

    Args:
        table: All ops.

    Returns:
        Sender and receiver for each row of the table; ``NO_PEER`` where there is none.
    """
    source = np.full(len(table), NO_PEER, dtype=np.int64)
    target = source.copy()
    rows, kind = _find_rows(table)
    if len(rows):
        source[rows], target[rows] = _find_ends(table, rows, kind)
    return source, target


def _find_rows(table: Collectives) -> tuple[IntColumn, IntColumn]:
    kind_by_form = np.array([_KINDS.get(form.op, -1) for form in table.forms], dtype=np.int64)
    rows = np.flatnonzero(table.is_p2p)
    if len(rows):
        rows = rows[kind_by_form[table.form[rows]] >= 0]
    return rows, kind_by_form[table.form[rows]] if len(rows) else rows


def _number(table: Collectives, rows: IntColumn, pair: IntColumn, kind: IntColumn) -> IntColumn:
    """Number the transfers of each pair, the same on both ends.

    They are counted from the first one; where a ring has lost that, back from the first one that
    is not done, because a transfer ends on both sides.
    """
    end = pair * 2 + kind
    order = np.argsort(end, kind="stable")
    starts = np.flatnonzero(np.diff(end[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(order)))
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    done = np.bincount(end, weights=table.done[rows], minlength=2 * (int(pair.max()) + 1))
    done = done.astype(np.int64).reshape(-1, 2)
    lost = {dump.rank for dump in table.dumps if dump.first_record > 0}
    wrapped = np.isin(table.rank[rows], list(lost)) if lost else np.zeros(len(rows), np.bool_)
    is_wrapped = np.zeros(len(done), dtype=np.bool_)
    is_wrapped[pair[wrapped]] = True
    shift = np.where(is_wrapped[:, None], done.max(axis=1, initial=0)[:, None] - done, 0)
    return place + shift[pair, kind] + 1


def list_transfers(table: Collectives, view: View) -> list[Timeline]:
    """Show the transfers of each group.

    Args:
        table: All ops.
        view: What to show.

    Returns:
        One timeline for each group with transfers; those that are not done stay in it.
    """
    transfers = match_transfers(table)
    shown = []
    for number in np.unique(transfers.group).tolist():
        group = table.groups[number]
        lines = np.flatnonzero(transfers.group == number)
        if view.ranks:
            chosen = list(view.ranks)
            mine = np.isin(transfers.source[lines], chosen)
            lines = lines[mine | np.isin(transfers.target[lines], chosen)]
        if not len(lines) or not view.has_group(group.name, group.desc):
            continue
        ranks = np.unique([transfers.source[lines], transfers.target[lines]])
        members = group.members or tuple(rank for rank in ranks.tolist() if rank != NO_PEER)
        shown.append(
            Timeline(
                group=group.name or group.desc,
                desc=group.desc,
                members=format_ranks(members),
                recorded=len(lines),
                ops=list(_tell(table, transfers, _choose(table, transfers, lines, view), view)),
            )
        )
    return shown


def _choose(table: Collectives, transfers: Transfers, lines: IntColumn, view: View) -> IntColumn:
    """Choose the last transfers of a group, in order of time; open ones before all others."""
    rows = transfers.rows[lines]
    created_ns = np.where(rows == _NO_ROW, 0, table.created_ns[rows]).max(axis=1)
    order = np.argsort(created_ns, kind="stable")
    if view.last == ALL or len(lines) <= view.last:
        return lines[order]
    is_open = _is_open(table, rows)[order]
    ranked = np.argsort(is_open, kind="stable")[-view.last :]
    return lines[order[np.sort(ranked)]]


def _is_open(table: Collectives, rows: NDArray[np.int64]) -> BoolColumn:
    present = rows != _NO_ROW
    over = present & table.done[rows]
    return np.asarray(present.any(axis=1) & ~over.any(axis=1), dtype=np.bool_)


def _tell(
    table: Collectives, transfers: Transfers, lines: IntColumn, view: View
) -> Iterator[TimelineOp]:
    is_first = True
    seen = frozenset(dump.rank for dump in table.dumps)
    for line in lines.tolist():
        rows = transfers.rows[line].tolist()
        ends = [int(transfers.source[line]), int(transfers.target[line])]
        classes = [
            _tell_end(table, rank, row, other, is_seen=rank in seen, stacks=view.stacks)
            for rank, row, other in zip(ends, rows, reversed(rows), strict=True)
            if rank != NO_PEER
        ]
        mark = ""
        if is_first and any(part.state not in {DONE, UNKNOWN} for part in classes):
            mark, is_first = "pending", False
        elif _size(classes, 0) != _size(classes, 1):
            mark = "mismatch"
        yield TimelineOp(
            sequence=int(transfers.number[line]),
            op=f"{_name(ends[0])}->{_name(ends[1])}",
            is_p2p=True,
            mark=mark,
            classes=classes,
        )


def _name(rank: int) -> str:
    return "?" if rank == NO_PEER else str(rank)


def _tell_end(
    table: Collectives, rank: int, row: int, other: int, *, is_seen: bool, stacks: bool
) -> RankClass:
    if row != _NO_ROW:
        running = STARTED if bool(table.started[row]) else PENDING
        state = DONE if bool(table.done[row]) else running
        told = tell_class(table, str(rank), state, row, stacks=stacks)
        return replace(told, op=table.forms[int(table.form[row])].op)
    # What is done at one end was there at the other, too.
    is_lost = not is_seen or bool(table.done[other])
    return RankClass(ranks=str(rank), state=UNKNOWN if is_lost else ABSENT)


def _size(classes: list[RankClass], index: int) -> int:
    known = [sum(prod(size) for size in part.sizes) for part in classes if part.sizes]
    return known[index] if len(known) > 1 else 0
