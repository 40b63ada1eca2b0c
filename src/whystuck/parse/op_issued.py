"""Ops on devices of logs that do not tell their ends: what is known of them is who issued them.

A device cannot be asked whether an op is over without a cost to the job. An op that a member has
not issued is surely pending; one that all have issued counts as over. So that a standstill behind
the last op of a rank can be told at all, that one stays open.
"""

from __future__ import annotations

import numpy as np

from whystuck.evidence.ops import HOST, P2P, BoolColumn, Column, Ops, number_columns, slice_logs

HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
_ALL = np.iinfo(np.int64).max


def find_endless(ops: Ops) -> BoolColumn:
    """Tell the ops that run on a device, in logs that hold no end of any such op."""
    on_device = _find_on_device(ops)
    told = np.zeros(len(ops.logs) + 1, dtype=np.bool_)
    told[ops.log[on_device & (ops.done_ns > 0)]] = True
    return np.asarray(on_device & ~told[ops.log])


def find_issued_by_all(ops: Ops, endless: BoolColumn) -> BoolColumn:
    """Tell which ops of `find_endless` count as over.

    Args:
        ops: The op logs.
        endless: The ops to tell of.

    Returns:
        One value for each row of the logs, false for all others.
    """
    is_p2p = ops.flags & P2P > 0
    over = np.zeros(len(ops), dtype=np.bool_)
    _settle_collectives(ops, np.flatnonzero(endless & ~is_p2p), over)
    _settle_transfers(ops, np.flatnonzero(endless & is_p2p), over)
    for own in slice_logs(ops):
        rows = np.flatnonzero(endless[own])
        if len(rows):
            over[own.start + rows[-1]] = False
    return over


def name_backend(backend: str, device: str) -> str:
    """Choose the backend of a device where a group has several: ``cpu:gloo,cuda:nccl``."""
    pairs = dict(part.split(":", 1) for part in backend.split(",") if ":" in part)
    return pairs.get(device or "cpu", backend if not pairs else next(iter(pairs.values())))


def _find_on_device(ops: Ops) -> BoolColumn:
    first, kind = number_columns(ops.group, ops.form)
    names = [
        name_backend(ops.groups[group].backend, ops.forms[form].device)
        for group, form in zip(ops.group[first].tolist(), ops.form[first].tolist(), strict=True)
    ]
    device = np.array([name not in {"", *HOST_BACKENDS} for name in names] or [False])
    return np.asarray((ops.flags & HOST == 0) & device[kind])


def _settle_collectives(ops: Ops, rows: Column, over: BoolColumn) -> None:
    """Mark the ops that are no further than what each member with a log has issued."""
    first, pair = number_columns(ops.team[rows], ops.log[rows])
    furthest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(furthest, pair, ops.place[rows])
    team = ops.team[rows][first]
    # The last value is that of ops whose group is not known.
    common = np.full(len(ops.teams) + 1, _ALL, dtype=np.int64)
    np.minimum.at(common, team, furthest)
    counts = np.bincount(team[team >= 0], minlength=len(ops.teams))
    known = {log.rank for log in ops.logs}
    for number in np.flatnonzero(counts).tolist():
        if counts[number] < len(known.intersection(ops.teams[number].members)):
            common[number] = 0
    over[rows] = ops.place[rows] <= common[ops.team[rows]]


def _settle_transfers(ops: Ops, rows: Column, over: BoolColumn) -> None:
    """Mark the sends and receives whose other half is issued, or cannot be known to be."""
    first, kind = number_columns(ops.team[rows], ops.group[rows], ops.form[rows], ops.rank[rows])
    numbers: dict[tuple[int, int, int, bool], int] = {}
    keys, halves, is_unknown = [], [], []
    known = {log.rank for log in ops.logs}
    for row in rows[first].tolist():
        shape, ranks = ops.forms[int(ops.form[row])], ops.groups[int(ops.group[row])].ranks
        rank, is_send = int(ops.rank[row]), shape.op == "send"
        peer = ranks[shape.peer] if 0 <= shape.peer < len(ranks) else -1
        ends = (rank, peer) if is_send else (peer, rank)
        keys.append(numbers.setdefault((int(ops.team[row]), *ends, is_send), len(numbers)))
        halves.append((int(ops.team[row]), *ends, not is_send))
        is_unknown.append(peer not in known)
    key = np.array(keys or [0], dtype=np.int64)[kind]
    counts = np.bincount(key, minlength=len(numbers))
    other = np.array([counts[numbers[half]] if half in numbers else 0 for half in halves] or [0])
    order = np.argsort(key, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    starts = np.cumsum(counts) - counts
    place[order] = np.arange(len(rows)) - starts[key[order]]
    # Where older ops are lost, the numbers of the two halves cannot be compared.
    is_lost = any(log.dropped for log in ops.logs)
    over[rows] = (place < other[kind]) | np.array(is_unknown or [True])[kind] | is_lost
