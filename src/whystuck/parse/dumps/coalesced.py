"""Ops that were issued as one: which of them are over.

NCCL records each op of such a batch without events of its own, so that these entries say
"scheduled" for ever. Only the entry that closes the batch, ``coalesced`` or
``ALLGATHER_coalesced``, tells when all of them began and ended. All share one sequence number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import BoolColumn, OpForm
from whystuck.parse.dumps.fast.columns import Columns

_CLOSING = "coalesced"


def find_batches(columns: Columns, dump: NDArray[np.intp], forms: Sequence[OpForm]) -> list[int]:
    """Tell which dumps may hold ops that were issued as one; most jobs have none.

    Args:
        columns: The entries of some dumps, in order.
        dump: The dump of each entry.
        forms: What ``columns.form`` indexes.

    Returns:
        The dumps that `close_batches` may change.
    """
    if len(columns) == 0:
        return []
    may_batch = columns.is_p2p & _mark_closing(columns, forms)
    groups = int(columns.group.max()) + 1
    key = (dump * groups + columns.group) * 2 + columns.is_p2p
    # Numbers of two bytes are sorted several times as fast.
    small = key.astype(np.uint16) if key.max() <= np.iinfo(np.uint16).max else key
    order = np.argsort(small, kind="stable")
    seq, key = columns.seq[order], key[order]
    # Where the numbers of a group rise, no two ops share one.
    again = (seq[1:] <= seq[:-1]) & (key[1:] == key[:-1])
    may_batch[order[1:][again]] = True
    found: list[int] = np.flatnonzero(np.bincount(dump[may_batch])).tolist()
    return found


def close_batches(
    columns: Columns, forms: Sequence[OpForm], completed: Mapping[int, int] | None = None
) -> None:
    """Let the ops of a batch begin and end with the entry that closes it.

    Args:
        columns: The entries of one dump, in order; changed in place.
        forms: What ``columns.form`` indexes.
        completed: The number of the last op that is over, by the rank's number of the group.
    """
    if len(columns) == 0:
        return
    order, first, last = _find_runs(columns)
    size = last - first + 1
    is_batch = size > 1
    closes = _mark_closing(columns, forms)[order]
    is_p2p = columns.is_p2p[order[last]]
    if (is_p2p & (is_batch | closes[last])).any():
        # A job batches all its transfers or none, and a batch may hold a single one.
        is_batch |= is_p2p & ~closes[last]
    if not is_batch.any():
        return
    closed = is_batch & closes[last]
    if closed.any():
        _copy_from_last(columns, order, last, np.repeat(closed, size), size)
    # In a dump of active ops the closing entry of a batch that is over is left out. It had the
    # next number; a later entry shows that there was one, or else the counter of the group.
    record = columns.record[order]
    gone = is_batch & ~closes[last] & ~np.isin(record[last] + 1, record)
    is_later = record[last] < record.max()
    gone &= is_later | (
        is_p2p & (columns.seq[order[last]] == _count_over(columns, completed, order[last]))
    )
    if gone.any():
        over = order[np.repeat(gone, size)]
        columns.started[over] = True
        columns.done[over] = True


def _count_over(
    columns: Columns, completed: Mapping[int, int] | None, rows: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Tell for some rows the number of the last op of their group that is over."""
    known = completed or {}
    return np.array([known.get(number, -1) for number in columns.pg_id[rows].tolist()], np.int64)


def _find_runs(
    columns: Columns,
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Sort the rows so that those of one batch are neighbours; tell where each batch is."""
    order = np.lexsort((columns.seq, columns.is_p2p, columns.group))
    changes = np.zeros(len(order), dtype=np.bool_)
    changes[0] = True
    for column in (columns.seq, columns.is_p2p, columns.group):
        values = column[order]
        changes[1:] |= values[1:] != values[:-1]
    first = np.flatnonzero(changes)
    last = np.append(first[1:], len(order)) - 1
    return order, first, last


def _mark_closing(columns: Columns, forms: Sequence[OpForm]) -> BoolColumn:
    closing = np.array([form.op.endswith(_CLOSING) for form in forms], dtype=np.bool_)
    return closing[columns.form]


def _copy_from_last(
    columns: Columns,
    order: NDArray[np.intp],
    last: NDArray[np.intp],
    inside: BoolColumn,
    size: NDArray[np.intp],
) -> None:
    rows, source = order[inside], order[np.repeat(last, size)[inside]]
    for column in (columns.started_ns, columns.completed_ns, columns.started, columns.done):
        column[rows] = column[source]
