"""When work was done: on the devices, or, where a trace has none, by the ops of the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whystuck.evidence.traces.events import Category
from whystuck.tracing.arrays.intervals import Times, Union, cover, unite
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.host.spans import (
    find_calls,
    find_compilations,
    find_data_waits,
    find_host_collectives,
)
from whystuck.tracing.host.trees import HostTree, Rows, thread_keys
from whystuck.tracing.view import TraceView, once


@dataclass(frozen=True)
class Work:
    """When there was work of each class.

    ``is_known`` is false where the trace lacks the work of devices: the host launched some, or
    memory of a device was allocated.
    ``is_on_host`` is true where the ops of the host are the work.
    """

    compute: Union
    comm: Union
    memory: Union
    is_known: bool = True
    is_on_host: bool = False

    @property
    def busy(self) -> Union:
        """When there was any work."""
        return join(self.compute, self.comm, self.memory)


def join(*unions: Union) -> Union:
    """Return the time in any of some unions."""
    some = [one for one in unions if len(one.start)] or list(unions[:1])
    if len(some) == 1:
        return some[0]
    return unite(
        np.concatenate([one.start for one in some]), np.concatenate([one.end for one in some])
    )


def subtract(one: Union, other: Union) -> Union:
    """Return the time in one union that is not in another."""
    if not len(other.start):
        some = one.end > one.start
        return Union(one.start[some], one.end[some])
    # What is in either, but not in the other: between neighbouring edges nothing changes.
    edges = np.unique(np.concatenate((one.start, one.end, other.start, other.end)))
    start, end = edges[:-1], edges[1:]
    kept = (cover(one, end) > cover(one, start)) & (cover(other, end) == cover(other, start))
    return unite(start[kept], end[kept])


def within(union: Union, start: Times, end: Times) -> Times:
    """Return how much of a union lies in each of some times, in ns."""
    return cover(union, end) - cover(union, start)


def unite_rows(view: TraceView, rows: Rows) -> Union:
    """Return when any of some events lasted."""
    return unite(view.events.start_ns[rows], view.find_ends(rows))


@once
def find_work(view: TraceView) -> Work:
    """Find when there was work of each class.

    Args:
        view: The trace.

    Returns:
        The work of all devices together. In a trace without any device the outermost ops compute,
        but for the time in which they communicate, compile, or get the next batch.
    """
    rows = view.device_rows
    if len(view.all_device_rows):
        by_class = {kind: rows[view.device_class == kind] for kind in KernelClass}
        return Work(
            compute=unite_rows(view, by_class[KernelClass.COMPUTE]),
            comm=unite_rows(view, by_class[KernelClass.COMM]),
            memory=unite_rows(view, by_class[KernelClass.MEMORY]),
        )
    none = unite_rows(view, rows[:0])
    if len(find_calls(view)) or (view.trace.get("memory_device_type").value > 0).any():
        return Work(none, none, none, is_known=False)
    return _find_host_work(view, none)


def _find_host_work(view: TraceView, none: Union) -> Work:
    events = view.events
    comm = find_host_collectives(view)
    apart = np.concatenate((comm, find_compilations(view), find_data_waits(view)))
    is_op = events.category == Category.CPU_OP
    ops = view.ops
    if np.count_nonzero(is_op) != len(ops):
        ops = HostTree.of_rows(events, np.flatnonzero(is_op))
    outer = ops.row[ops.nesting.depth == 0]
    if view.cut_ns is not None:
        outer = outer[events.start_ns[outer] < view.cut_ns]
    key, apart_key = thread_keys(events, outer), thread_keys(events, apart)
    pieces = [none]
    for thread in np.unique(key).tolist():
        mine = unite_rows(view, outer[key == thread])
        pieces.append(subtract(mine, unite_rows(view, apart[apart_key == thread])))
    return Work(join(*pieces), unite_rows(view, comm), none, is_on_host=True)
