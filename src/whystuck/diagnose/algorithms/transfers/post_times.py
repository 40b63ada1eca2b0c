"""Transfers between two ranks: when the other half of each receive was posted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whystuck.diagnose.algorithms.times.op_instances import Numbers
from whystuck.evidence.ops.log import P2P, Ops, number_columns


@dataclass(frozen=True)
class Posted:
    """For each row of the op logs, when its message was sent; 0 when unknown, or no receive."""

    sent_ns: Numbers


def match_transfers(ops: Ops) -> Posted:
    """Match sends and receives by pair, tag and order.

    Only logs that hold all ops from the first on tell the order, and only those of one clock can be
    compared to the end of a receive.

    Args:
        ops: The op logs.

    Returns:
        When each message was sent.
    """
    sent_ns = np.zeros(len(ops), dtype=np.int64)
    whole = [number for number, log in enumerate(ops.logs) if not log.dropped]
    base = np.array([team.base for team in ops.teams] or [0], dtype=np.int64)
    rows = np.flatnonzero((ops.flags & P2P > 0) & (ops.place > 0) & np.isin(ops.log, whole))
    rows = rows[base[ops.team[rows]] == 0]
    queues: dict[tuple[int, int, int, int], tuple[list[int], list[int]]] = {}
    first, inverse = number_columns(ops.group[rows], ops.form[rows], ops.source[rows])
    told = [_find_peer(ops, row) for row in rows[first].tolist()]
    for row, number in zip(rows.tolist(), inverse.tolist(), strict=True):
        peer, tag, is_send = told[number]
        if peer >= 0:
            rank = int(ops.rank[row])
            pair = (rank, peer) if is_send else (peer, rank)
            sends, takes = queues.setdefault((int(ops.team[row]), *pair, tag), ([], []))
            (sends if is_send else takes).append(row)
    clock = np.array([log.clock for log in ops.logs] or [0], dtype=np.int64)
    for sends, takes in queues.values():
        for send, take in zip(sends, takes, strict=False):
            if clock[ops.log[send]] == clock[ops.log[take]]:
                sent_ns[take] = ops.enqueued_ns[send]
    return Posted(sent_ns)


def find_peer_rank(ops: Ops, row: int) -> int:
    """Return the rank at the other end of a send or a receive, -1 when it is not known."""
    return _find_peer(ops, row)[0]


def _find_peer(ops: Ops, row: int) -> tuple[int, int, bool]:
    """Return the other rank of a transfer, the tag, and whether this one sends."""
    shape, ranks = ops.forms[int(ops.form[row])], ops.groups[int(ops.group[row])].ranks
    peer = int(ops.source[row]) if shape.op == "recv_any" else shape.peer
    return (ranks[peer] if 0 <= peer < len(ranks) else -1), shape.tag, shape.op == "send"
