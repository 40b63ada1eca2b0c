"""Finds threads of a rank that use one group at the same time: their calls have no fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whystuck.evidence.ops.log import HOST, NO_END, Ops, slice_logs

_MAX_OPS = 4096


@dataclass(frozen=True)
class RivalThreads:
    """Threads of a rank with ops of one group that are not over, and the last row of each."""

    rank: int
    rows: dict[str, int]


def find_rival_threads(ops: Ops, group: str) -> tuple[RivalThreads, ...]:
    """Return each rank of which several threads have unfinished ops of a group.

    Ops of devices are left out: autograd has a thread for each device, and issues there what the
    main thread waits for.
    """
    found = []
    for log, rows_of_log in zip(ops.logs, slice_logs(ops), strict=True):
        start, stop = rows_of_log.start, rows_of_log.stop
        own = slice(max(start, stop - _MAX_OPS), stop)
        is_open = (ops.ended_ns[own] == 0) & (ops.done_ns[own] == 0) & (ops.thread[own] > 0)
        is_open &= (ops.flags[own] & (HOST | NO_END)) == HOST
        rows = [
            own.start + int(row)
            for row in np.flatnonzero(is_open & (ops.team[own] >= 0))
            if ops.teams[int(ops.team[own.start + int(row)])].name == group
        ]
        by_thread = {int(ops.thread[row]): row for row in rows}
        if len(by_thread) > 1:
            named = {_name(ops, thread): row for thread, row in by_thread.items()}
            found.append(RivalThreads(log.rank, named))
    return tuple(found)


def _name(ops: Ops, thread: int) -> str:
    item = ops.threads[thread]
    return item.name or f"thread {item.native_id}"
