"""Sends and receives on the host, from op logs: who waits for a half that nobody has posted.

A backend of the host matches messages by the two ranks, the tag and their order. A log that holds
all ops from the first on tells the number of each in its pair. Where older ops are lost, those of
the steps that both ranks have whole are counted; without steps, the pending ones are matched: a
pair of which both halves are posted does not stay pending.

Nobody can see the end of a transfer that its thread does not wait for. What is posted counts as
posted; whether a rank is blocked in such an op, only a stack tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.transfers.pairs import find_peer
from whystuck.evidence.ops.collectives import NO_PEER, Collectives
from whystuck.evidence.ops.log import ASYNC, NO_END, Column, Ops, slice_logs

_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
_OTHER_HALF = {"send": "recv", "recv": "send"}
_ANY = "recv_any"
_MISSING, _FINISHED, _MEETING = "missing", "finished", "meeting"
# A rank, the kind of op, the positions of both ends in the group, and the tag.
_Key = tuple[int, str, int, int, int]


@dataclass
class _Book:
    """The rows of each side of each pair in one group, oldest first.

    ``step`` is the number of optimizer steps made before each row of a log, ``flags`` are those of
    the log; ``first_step`` is the first step that a rank has recorded as a whole.
    """

    table: Collectives
    whole: frozenset[int]
    step: Column
    flags: Column
    first_step: Mapping[int, int]
    rows: dict[_Key, list[int]] = field(default_factory=dict)

    def pending(self, key: _Key) -> list[int]:
        """Return the rows of a side that are not over."""
        done = self.table.done
        return [row for row in self.rows.get(key, ()) if not done[row]]

    def since(self, key: _Key, step: int) -> list[int]:
        """Return the rows of a side from a step on."""
        return [row for row in self.rows.get(key, ()) if self.step[row] >= step]

    def is_waited_for(self, row: int) -> bool:
        """Tell whether the thread of an op waits for its end."""
        return not int(self.flags[row]) & ASYNC

    def has_end(self, row: int) -> bool:
        """Tell whether the end of an op can be seen."""
        return not int(self.flags[row]) & NO_END


def is_logged(table: Collectives, row: int) -> bool:
    """Tell whether a row comes from an op log."""
    return row != NO_ROW and table.dumps[int(table.artifact[row])].is_op_log


def list_logged_groups(table: Collectives, groups: Iterable[GroupOps]) -> list[GroupOps]:
    """List the groups whose sends and receives run on the host and come from op logs."""
    found = []
    for group in groups:
        rows = next((rows for rows in group.p2p_by_rank.values() if len(rows)), None)
        if rows is None or not is_logged(table, int(rows[0])):
            continue
        if table.forms[int(table.form[rows[0]])].backend in _HOST_BACKENDS:
            found.append(group)
    return found


def drop_behind(table: Collectives, waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Drop the ops of ranks that are known to be blocked in a later one.

    Args:
        table: All ops.
        waits: What ranks may wait in.

    Returns:
        The waits that are left; a rank keeps all when none of its ops is the one that blocks it.
    """
    if not len(table.behind):
        return tuple(waits)
    ahead = {wait.rank for wait in waits if wait.row != NO_ROW and not table.behind[wait.row]}
    return tuple(
        wait
        for wait in waits
        if wait.row == NO_ROW or wait.rank not in ahead or not table.behind[wait.row]
    )


def find_host_waits(table: Collectives, groups: Sequence[GroupOps], ops: Ops) -> tuple[Wait, ...]:
    """Find the sends and receives that ranks wait in, and whose other half is not posted.

    Args:
        table: All ops.
        groups: Groups of `list_logged_groups`.
        ops: The op logs that the rows of these groups come from.

    Returns:
        One wait for each rank and group with such an op.
    """
    if not groups:
        return ()
    lost = {dump.rank for dump in table.dumps if dump.first_record > 0}
    whole = frozenset(dump.rank for dump in table.dumps if dump.is_op_log) - lost
    step, flags = _look_up(table, ops)
    first_step = _find_first_steps(ops)
    waits = []
    for group in groups:
        book = _Book(table, whole, step, flags, first_step)
        for rank, rows in group.p2p_by_rank.items():
            for row in rows.tolist():
                form = table.forms[int(table.form[row])]
                key = rank, form.op, form.source, form.target, form.tag
                book.rows.setdefault(key, []).append(row)
        for rank in group.p2p_by_rank:
            heads = _find_heads(table, group, rank)
            if heads:
                waits.append(_make_wait(book, group, rank, heads))
    return tuple(waits)


def _look_up(table: Collectives, ops: Ops) -> tuple[Column, Column]:
    """Return the steps and flags of the rows of a table that come from op logs; else 0."""
    is_log = np.array([dump.is_op_log for dump in table.dumps], dtype=np.bool_)
    rows = np.flatnonzero(is_log[table.artifact])
    top = int(ops.number.max(initial=0)) + 1
    key = ops.rank * top + ops.number
    place = np.searchsorted(key, table.rank[rows] * top + table.row[rows])
    step, flags = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
    step[rows], flags[rows] = ops.step[place], ops.flags[place]
    return step, flags


def _find_first_steps(ops: Ops) -> dict[int, int]:
    """Find the first step of each rank of which no op is lost."""
    return {
        log.rank: int(steps.min()) + 1
        for log, own in zip(ops.logs, slice_logs(ops), strict=True)
        if len(steps := ops.step[own])
    }


def _find_heads(table: Collectives, group: GroupOps, rank: int) -> list[int]:
    """Find the ops of a rank that it may be blocked in.

    When the last ops that it issued are transfers, it waits for one of these; else for the oldest.
    """
    own = slice_rank(table, rank)
    is_open = table.is_p2p[own] & ~table.done[own]
    if len(table.behind):
        is_open &= ~table.behind[own]
    pending = np.flatnonzero(is_open)
    if not len(pending):
        return []
    last = len(is_open) - 1
    closed = np.flatnonzero(~is_open)
    first = int(closed[-1]) + 1 if len(closed) else 0
    chosen = range(first, last + 1) if is_open[last] else (int(pending[0]),)
    mine = set(group.p2p_by_rank[rank].tolist())
    return [row for place in chosen if (row := own.start + place) in mine]


def _make_wait(book: _Book, group: GroupOps, rank: int, heads: Sequence[int]) -> Wait:
    found: dict[str, set[int]] = {}
    first: dict[str, int] = {}
    is_sure, may_be_over = True, False
    for row in heads:
        for peer, state in _compare(book, group, rank, row).items():
            found.setdefault(state, set()).add(peer)
            first.setdefault(state, row)
            is_sure &= state != _MISSING or {rank, peer} <= book.whole
            may_be_over |= state == _FINISHED and not book.has_end(row)
    row = first.get(_MISSING, heads[0])
    return Wait(
        rank,
        group,
        int(book.table.seq[row]),
        row,
        frozenset(found.get(_MISSING, ())),
        finished=frozenset(found.get(_FINISHED, ())),
        is_p2p=True,
        is_sure=is_sure,
        needs_stack=may_be_over or not any(book.is_waited_for(one) for one in heads),
    )


def _compare(book: _Book, group: GroupOps, rank: int, row: int) -> Mapping[int, str]:
    """Tell where each peer is that holds, or may hold, the other half of an op."""
    form = book.table.forms[int(book.table.form[row])]
    if form.op == _ANY:
        return _compare_any(book, group, rank, row)
    peer = find_peer(group, form.op, form.source, form.target)
    if peer is None or form.op not in _OTHER_HALF:
        return {}
    ends = form.source, form.target, form.tag
    mine: _Key = (rank, form.op, *ends)
    theirs: _Key = (peer, _OTHER_HALF[form.op], *ends)
    anybody: _Key = (peer, _ANY, NO_PEER, form.target, form.tag)
    takes_any = form.op == "send" and bool(book.pending(anybody))
    own, others = book.rows[mine], book.rows.get(theirs, [])
    if not {rank, peer} <= book.whole:
        step = max(book.first_step.get(one, 0) for one in (rank, peer))
        if book.step[row] < step:
            return {peer: _match_pending(book, row, (mine, theirs), takes_any=takes_any)}
        own, others = book.since(mine, step), book.since(theirs, step)
    index = own.index(row)
    if index < len(others):
        return {peer: _FINISHED if book.table.done[others[index]] else _MEETING}
    return {peer: _MEETING if takes_any else _MISSING}


def _match_pending(book: _Book, row: int, keys: tuple[_Key, _Key], *, takes_any: bool) -> str:
    """Match the ops of a pair that are not over, where the numbers of both are not known.

    Of an op that nobody waits for it is not known whether it is over: then nothing is claimed.
    """
    mine, theirs = keys
    own = book.pending(mine)
    if takes_any or not all(book.is_waited_for(one) for one in own):
        return _MEETING
    if own.index(row) < len(book.pending(theirs)):
        return _MEETING
    return _FINISHED if _was_sent(book, mine, theirs) else _MISSING


def _was_sent(book: _Book, mine: _Key, theirs: _Key) -> bool:
    """Tell whether the peer has sent something after all that this rank has received."""
    table = book.table
    if mine[1] != "recv":
        return False
    received_ns = max(
        (int(table.completed_ns[row]) for row in book.rows[mine] if table.done[row]), default=0
    )
    sent_ns = [int(table.created_ns[row]) for row in book.rows.get(theirs, ())]
    return bool(sent_ns) and max(sent_ns) > received_ns


def _compare_any(book: _Book, group: GroupOps, rank: int, row: int) -> Mapping[int, str]:
    """Compare a receive from any rank: it waits for all others unless one of them sends."""
    form = book.table.forms[int(book.table.form[row])]
    states = {}
    for position, peer in enumerate(group.ordered):
        if peer != rank:
            ends = position, form.target, form.tag
            sends: _Key = (peer, "send", *ends)
            received = len(book.rows.get((rank, "recv", *ends), ()))
            is_more = len(book.rows.get(sends, ())) > received and {rank, peer} <= book.whole
            states[peer] = _MEETING if is_more or book.pending(sends) else _MISSING
    is_met = _MEETING in states.values()
    return {peer: state for peer, state in states.items() if not is_met or state == _MEETING}
