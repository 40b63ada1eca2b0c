"""How far each rank came in each group: what it issued, what is over, what is pending.

Three sources are joined: the rows of a rank, the recorder's own counters (which also tell of ops
that a dump of active ops leaves out), and the order of ops, by which an op is over when a later
one of the same kind on the same group is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.evidence.ops.collectives import BoolColumn, Collectives, IntColumn, OpForm

# Collectives of gloo run on threads of the host, each as soon as it can; those of other backends
# run on a device in the order of its queue.
_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
# gloo counts sends and receives too, which it does not record, and notes the completions of its
# threads in any order, so that its counters run ahead of the rows or stay behind them.
_UNSURE_COUNTERS = frozenset({"gloo"})


@dataclass(frozen=True)
class Progress:
    """Sequence numbers of one group by rank: the last issued, and the last that is over.

    ``finished`` holds ranks of which the dumps tell; a rank without is unknown.
    """

    issued: Mapping[int, int]
    finished: Mapping[int, int]


def slice_rank(table: Collectives, rank: int) -> slice:
    """Return the rows of a rank, which lie together."""
    start, stop = np.searchsorted(table.rank, [rank, rank + 1])
    return slice(int(start), int(stop))


def list_ranks(table: Collectives) -> list[int]:
    """Return the ranks that have rows, in order; cheap, as the rows of a rank lie together."""
    starts = np.flatnonzero(np.diff(table.rank, prepend=-1))
    return [int(rank) for rank in table.rank[starts].tolist()]


def mend_done(table: Collectives) -> Collectives:
    """Mark an op as over when a later one of the same rank, group and kind is over.

    Args:
        table: All ops.

    Returns:
        The table, itself when nothing changes.
    """
    pending = np.flatnonzero(~table.done)
    if len(pending) == 0 or not bool(table.done.any()):
        return table
    kind = _number_kinds(table)
    done = table.done.copy()
    for rank in np.unique(table.rank[pending]).tolist():
        own = slice_rank(table, rank)
        own_done, own_group, own_kind = done[own], table.group[own], kind[table.form[own]]
        mine = np.flatnonzero(~own_done)
        for group, sort in {*zip(own_group[mine].tolist(), own_kind[mine].tolist(), strict=True)}:
            same = (own_group == group) & (own_kind == sort)
            over = np.flatnonzero(same & own_done)
            if len(over):
                own_done[: over[-1]] |= same[: over[-1]]
    return replace(table, done=done)


def _number_kinds(table: Collectives) -> IntColumn:
    """Number what keeps its order: collectives of a backend, and ops of a pair and direction."""
    numbers: dict[object, int] = {}
    kinds = [
        numbers.setdefault(
            (form.op, form.source, form.target) if form.op in {"send", "recv"} else form.backend,
            len(numbers),
        )
        for form in table.forms
    ]
    return np.array(kinds or [0], dtype=np.int64)


def find_oldest(table: Collectives) -> dict[int, int]:
    """Find the row of the oldest op of each rank that is not over."""
    pending = np.flatnonzero(~table.done)
    ranks, first = np.unique(table.rank[pending], return_index=True)
    return dict(zip(ranks.tolist(), pending[first].tolist(), strict=True))


def find_longest_wait(table: Collectives) -> int:
    """Return the longest time from the call of an op to its end, in ns, of ops that are over.

    Where hosts run ahead, most of that is the time in the queue. 0 when no end is known.
    """
    over = table.done & (table.completed_ns > 0)
    return int((table.completed_ns - table.created_ns)[over].max(initial=0))


def find_device_ranks(table: Collectives) -> frozenset[int]:
    """Find ranks whose ops run on a device, in the order of its queue."""
    is_device = np.array([_is_device(form) for form in table.forms] or [False], dtype=np.bool_)
    if not is_device.any():
        return frozenset()
    if is_device.all():
        return frozenset(list_ranks(table))
    rows: BoolColumn = is_device[table.form]
    return frozenset(np.unique(table.rank[rows]).tolist())


def _is_device(form: OpForm) -> bool:
    return bool(form.backend) and form.backend not in _HOST_BACKENDS


def is_on_device(table: Collectives, row: int) -> bool:
    """Return whether the op of a row runs on a device."""
    return _is_device(table.forms[int(table.form[row])])


def find_last_unseen(table: Collectives) -> dict[int, int]:
    """Find the row of the newest op of each rank that counts as over although nobody saw that."""
    rows = np.flatnonzero(table.unseen)
    ranks, last = np.unique(table.rank[rows][::-1], return_index=True)
    return dict(zip(ranks.tolist(), rows[::-1][last].tolist(), strict=True))


def find_unrecorded(table: Collectives, groups: Iterable[GroupOps]) -> frozenset[int]:
    """Find ranks whose counters run ahead of their rows: they use ops that are not recorded.

    gloo counts sends and receives, and records none of them.
    """
    status = table.statuses
    found = set()
    for group in groups:
        if group.p2p_by_rank or _name_backend(table, group) not in _UNSURE_COUNTERS:
            continue
        for index in group.counters:
            rows = group.rows_by_rank.get(int(status.rank[index]))
            if rows is not None and int(status.enqueued[index]) > int(table.seq[rows[-1]]):
                found.add(int(status.rank[index]))
    return frozenset(found)


def measure_progress(table: Collectives, group: GroupOps) -> Progress:
    """Tell how far each rank came in a group.

    Args:
        table: All ops.
        group: The group.

    Returns:
        What each rank issued and finished there.
    """
    issued: dict[int, int] = {}
    finished: dict[int, int] = {}
    # What came before the first row is over, or is lost: a ring may hold pending ops alone.
    guessed: set[int] = set()
    for rank, rows in group.rows_by_rank.items():
        pending = np.flatnonzero(~table.done[rows])
        issued[rank] = int(table.seq[rows[-1]])
        finished[rank] = int(table.seq[rows[pending[0]]]) - 1 if len(pending) else issued[rank]
        if len(pending) == len(rows):
            guessed.add(rank)
    _add_counters(table, group, issued, finished, guessed)
    return Progress(issued, finished)


def _add_counters(
    table: Collectives,
    group: GroupOps,
    issued: dict[int, int],
    finished: dict[int, int],
    guessed: set[int],
) -> None:
    # A group that is used for point-to-point ops too counts those with the same counter.
    if group.p2p_by_rank:
        return
    status = table.statuses
    is_sure = _name_backend(table, group) not in _UNSURE_COUNTERS
    for index in group.counters:
        rank = int(status.rank[index])
        if is_sure or rank not in issued:
            issued[rank] = max(issued.get(rank, 0), int(status.enqueued[index]))
            told = int(status.completed[index])
            finished[rank] = told if rank in guessed else max(finished.get(rank, 0), told)


def _name_backend(table: Collectives, group: GroupOps) -> str:
    rows = next(iter(group.rows_by_rank.values()), None)
    return "" if rows is None else table.forms[int(table.form[rows[0]])].backend
