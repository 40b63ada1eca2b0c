"""Sends and receives on devices, whose ends nobody sees: over when the other half is issued."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.ops.log import (
    FAILED,
    HOST,
    ISSUE_FAILED,
    NO_END,
    P2P,
    BoolColumn,
    Column,
    Ops,
    number_columns,
)

# The sending rank, the receiving one, whether this is the sending half; all in one team.
_Half = tuple[int, int, int, bool]


def find_met_halves(ops: Ops) -> BoolColumn:
    """Tell the sends and receives on devices whose other half is issued, or cannot be known to be.

    A device takes the messages of one pair in order. Where a log has lost older ops, or is not
    there, the numbers of the two halves cannot be compared.
    """
    met = np.zeros(len(ops), dtype=np.bool_)
    kind = ops.flags & (NO_END | HOST | P2P | ISSUE_FAILED | FAILED)
    is_open = (kind == NO_END | P2P) & (ops.returned_ns > 0) & (ops.done_ns == 0)
    rows = np.flatnonzero(is_open)
    if len(rows):
        met[rows] = any(log.dropped for log in ops.logs) or _match(ops, rows)
    return met


def _match(ops: Ops, rows: Column) -> BoolColumn:
    """Count the halves of each pair, and tell those that have another one of their number."""
    known = {log.rank for log in ops.logs}
    first, kind = number_columns(ops.team[rows], ops.group[rows], ops.form[rows], ops.rank[rows])
    halves = [_name_half(ops, row) for row in rows[first].tolist()]
    numbers: dict[_Half, int] = {}
    key = np.array([numbers.setdefault(half, len(numbers)) for half in halves])[kind]
    counts = np.bincount(key, minlength=len(numbers))
    others = np.array([_count_other(half, numbers, counts, known) for half in halves])
    order = np.argsort(key, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows)) - (np.cumsum(counts) - counts)[key[order]]
    return np.asarray(place < others[kind])


def _name_half(ops: Ops, row: int) -> _Half:
    shape, ranks = ops.forms[int(ops.form[row])], ops.groups[int(ops.group[row])].ranks
    rank, is_send = int(ops.rank[row]), shape.op == "send"
    peer = ranks[shape.peer] if 0 <= shape.peer < len(ranks) else -1
    ends = (rank, peer) if is_send else (peer, rank)
    return int(ops.team[row]), *ends, is_send


def _count_other(half: _Half, numbers: dict[_Half, int], counts: Column, known: set[int]) -> int:
    team, source, target, is_send = half
    if not {source, target} <= known:
        return int(np.iinfo(np.int64).max)
    number = numbers.get((team, source, target, not is_send))
    return 0 if number is None else int(counts[number])
