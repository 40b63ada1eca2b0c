"""When ops were over, and which op of a thread came next."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.ops.log import ASYNC, HOST, BoolColumn, Column, Ops

_NO_ROW = -1


def find_next(ops: Ops) -> Column:
    """Find the op that the same thread issued next, -1 when there is none."""
    following = np.full(len(ops), _NO_ROW, dtype=np.int64)
    order = np.lexsort((ops.number, ops.thread, ops.rank))
    same = (ops.thread[order][1:] == ops.thread[order][:-1]) & (ops.thread[order][1:] > 0)
    following[order[:-1][same]] = order[1:][same]
    return following


def is_synchronous(ops: Ops) -> BoolColumn:
    """Tell the ops whose thread waits for the end on the host before it goes on."""
    return np.asarray((ops.flags & (ASYNC | HOST)) == HOST)


def find_ends(ops: Ops) -> Column:
    """Find when each op was over at the latest, 0 where that is not known.

    Args:
        ops: The op logs.

    Returns:
        The first look at which the op was over; for an op that its thread waits for, no later than
        the next op of that thread.
    """
    following = find_next(ops)
    next_ns = np.where(following >= 0, ops.enqueued_ns[following], 0) if len(ops) else following
    is_bound = is_synchronous(ops) & (next_ns > 0)
    ends_ns = ops.done_ns.copy()
    ends_ns[is_bound & ((ends_ns == 0) | (next_ns < ends_ns))] = 0
    return np.where(is_bound & (ends_ns == 0), next_ns, ends_ns)
