"""Point-to-point ops: which send belongs to which receive, and who has not posted the other half.

The recorder numbers the ops of a rank, not those of a pair. Halves are therefore matched by group,
source, target and order: from the start where neither ring has lost entries, else from the oldest
that is not over, as a backend finishes the ops of one pair in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.waits import Wait
from whystuck.evidence.ops.collectives import NO_PEER, Collectives

_OTHER_HALF = {"send": "recv", "recv": "send"}
_Key = tuple[int, str, int, int]


@dataclass(frozen=True)
class _Half:
    """One side of a pair: the rows of a rank for one op and direction, all and pending."""

    rows: Sequence[int]
    pending: Sequence[int]


_MISSING, _BEHIND, _FINISHED, _MEETING = "missing", "behind", "finished", "meeting"


@dataclass(frozen=True)
class _Book:
    """What is known of all ranks: the ops, the oldest that is not over, whose dump is whole."""

    table: Collectives
    oldest: Mapping[int, int]
    whole: frozenset[int]

    def compare(self, row: int, mine: tuple[int, _Half], theirs: tuple[int, _Half]) -> str:
        """Tell where the peer is that holds the other half of the op of a row."""
        (rank, own), (peer, other) = mine, theirs
        is_whole = rank in self.whole and peer in self.whole
        index = (own.rows if is_whole else own.pending).index(row)
        candidates = other.rows if is_whole else other.pending
        if index >= len(candidates):
            return _MISSING
        if self.table.done[candidates[index]]:
            return _FINISHED
        return _MEETING if self._is_at(peer, candidates[index]) else _BEHIND

    def _is_at(self, rank: int, row: int) -> bool:
        """Tell whether the oldest op of a rank is that of a row, or of the same batch."""
        oldest, table = self.oldest.get(rank), self.table
        if oldest is None:
            return False
        return oldest == row or (
            bool(table.is_p2p[oldest])
            and int(table.group[oldest]) == int(table.group[row])
            and int(table.seq[oldest]) == int(table.seq[row])
        )


def find_pair_waits(
    table: Collectives,
    groups: Iterable[GroupOps],
    oldest: Mapping[int, int],
) -> tuple[Wait, ...]:
    """Find the point-to-point ops that ranks wait in, and whose other half is not posted.

    Args:
        table: All ops.
        groups: The groups of the table.
        oldest: The row of the oldest op of each rank that is not over.

    Returns:
        One wait for each rank whose oldest op is a point-to-point op, or a batch of them.
    """
    book = _Book(table, oldest, _find_whole(table))
    waits = []
    for group in groups:
        here = {
            rank: oldest[rank]
            for rank in group.p2p_by_rank
            if rank in oldest
            and table.is_p2p[oldest[rank]]
            and oldest[rank] in group.p2p_by_rank[rank]
        }
        halves = _collect_halves(table, group) if here else {}
        for rank, row in here.items():
            wait = _make_wait(book, group, halves, rank, row)
            if wait is not None:
                waits.append(wait)
    return tuple(waits)


def _find_whole(table: Collectives) -> frozenset[int]:
    """Find ranks whose dump holds all their ops from the first on."""
    if not table.done.any():
        return frozenset()
    torn = {dump.rank for dump in table.dumps if dump.first_record > 0}
    return frozenset(dump.rank for dump in table.dumps) - torn


def _collect_halves(table: Collectives, group: GroupOps) -> dict[_Key, _Half]:
    """Sort the p2p rows of a group by rank, op and the two ends."""
    rows_by_key: dict[_Key, list[int]] = {}
    for rank, rows in group.p2p_by_rank.items():
        for row in rows.tolist():
            form = table.forms[int(table.form[row])]
            if form.op in _OTHER_HALF and NO_PEER not in (form.source, form.target):
                key = (rank, form.op, form.source, form.target)
                rows_by_key.setdefault(key, []).append(row)
    return {
        key: _Half(rows, [row for row in rows if not table.done[row]])
        for key, rows in rows_by_key.items()
    }


def _make_wait(
    book: _Book, group: GroupOps, halves: Mapping[_Key, _Half], rank: int, row: int
) -> Wait | None:
    """Compare a point-to-point op, or the batch it belongs to, with what the peers posted."""
    table = book.table
    seq = int(table.seq[row])
    found: dict[str, set[int]] = {}
    for one in group.p2p_by_rank[rank].tolist():
        if table.done[one] or int(table.seq[one]) != seq:
            continue
        form = table.forms[int(table.form[one])]
        peer = find_peer(group, form.op, form.source, form.target)
        if peer is None or form.op not in _OTHER_HALF:
            continue
        mine = halves[rank, form.op, form.source, form.target]
        theirs = halves.get((peer, _OTHER_HALF[form.op], form.source, form.target), _Half((), ()))
        found.setdefault(book.compare(one, (rank, mine), (peer, theirs)), set()).add(peer)
    if not found:
        return None
    missing, behind, finished = (
        frozenset(found.get(state, ())) for state in (_MISSING, _BEHIND, _FINISHED)
    )
    return Wait(rank, group, seq, row, missing, behind, finished, is_p2p=True)


def find_peer(group: GroupOps, op: str, source: int, target: int) -> int | None:
    """Return the rank at the other end of a point-to-point op, None when it is not known."""
    position = target if op == "send" else source
    return group.ordered[position] if 0 <= position < len(group.ordered) else None
