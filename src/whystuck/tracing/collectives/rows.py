"""Which events of a trace are collectives, and which events of the host tell more about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import UNKNOWN, Category, is_one_of
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.collectives.ops import name_op
from whystuck.tracing.view import TraceView

Rows = NDArray[np.int64]

# `nccl:all_reduce` and so on, which c10d writes around each op of a backend.
_ANNOTATION = re.compile(r"[a-z0-9_]{2,16}:(?!:)[\w:]+")
_DISPATCHED = re.compile(r"c10d::\w+")


@dataclass(frozen=True)
class CommRows:
    """The collectives of a rank, by start; all are positions in `Trace.events`, -1 when absent.

    ``work`` is what took the time: a kernel, or on the CPU the op of the backend. ``launch`` is the
    call that started it, ``told`` the event of the host with what c10d says about the op,
    ``annotation`` the backend's name for it. ``is_device`` tells kernels.
    """

    work: Rows
    launch: Rows
    told: Rows
    annotation: Rows
    is_device: bool


def find_candidates(view: TraceView) -> Rows:
    """Return events of which some may be collectives; without any there are none."""
    if len(view.all_device_rows):
        return view.all_device_rows
    host = (Category.USER_ANNOTATION, Category.CPU_OP)
    rows = _find_named(view, _ANNOTATION, host)
    return rows if len(rows) else _find_named(view, _DISPATCHED, host)


def find_comm_rows(view: TraceView) -> CommRows:
    """Find the collectives of a rank, in and out of the window of the view.

    Kernels where the trace has any that communicate; otherwise what a backend of the CPU did.

    Args:
        view: The trace, with all its steps.

    Returns:
        The rows.
    """
    events = view.events
    told = _find_told(view)
    annotations = _find_named(view, _ANNOTATION, (Category.USER_ANNOTATION, Category.CPU_OP))
    is_comm = view.device_class == KernelClass.COMM
    work, launch = view.device_rows[is_comm], view.launch_rows[is_comm]
    if not len(work):
        return _find_host_rows(view, told, annotations)
    order = np.argsort(events.start_ns[work], kind="stable")
    work, launch = work[order], launch[order]
    return CommRows(
        work,
        launch,
        _first_known(_enclose(view, launch, told), _join_external(view, work, told)),
        _first_known(_enclose(view, launch, annotations), _join_external(view, work, annotations)),
        is_device=True,
    )


def _find_told(view: TraceView) -> Rows:
    """Events of the host with a collective's name, group and so on as arguments."""
    rows = view.trace.get("collective:text").event
    host = (Category.CPU_OP, Category.USER_ANNOTATION)
    return rows[is_one_of(view.events.category[rows], host)]


def _find_named(
    view: TraceView, pattern: re.Pattern[str], categories: tuple[Category, ...]
) -> Rows:
    fits = [
        place
        for place, name in enumerate(view.trace.names)
        if pattern.fullmatch(name) and name_op(name) != "unknown"
    ]
    events = view.events
    if not fits:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.isin(events.name, fits) & is_one_of(events.category, categories))


def _find_host_rows(view: TraceView, told: Rows, annotations: Rows) -> CommRows:
    events = view.events
    dispatched = _find_named(view, _DISPATCHED, (Category.CPU_OP,))
    work = annotations if len(annotations) else dispatched
    work = work[np.argsort(events.start_ns[work], kind="stable")]
    launch = work if work is dispatched else _pair_in_order(view, work, dispatched)
    return CommRows(work, launch, _enclose(view, work, told), work, is_device=False)


def _pair_in_order(view: TraceView, work: Rows, dispatched: Rows) -> Rows:
    """Join the k-th op of a backend with the k-th call of that op, where there are as many."""
    names, events = view.trace.names, view.events
    launch = np.full(len(work), UNKNOWN, dtype=np.int64)
    dispatched = dispatched[np.argsort(events.start_ns[dispatched], kind="stable")]
    ops = np.array([name_op(names[one]) for one in events.name[work].tolist()], dtype=str)
    calls = np.array([name_op(names[one]) for one in events.name[dispatched].tolist()], dtype=str)
    for op in np.unique(ops):
        mine, theirs = np.flatnonzero(ops == op), dispatched[calls == op]
        if len(mine) == len(theirs):
            launch[mine] = theirs
    # A call does not come after what it started: otherwise they are of other ops.
    is_late = (launch >= 0) & (events.start_ns[launch] > events.start_ns[work])
    return np.where(is_late, UNKNOWN, launch)


def _enclose(view: TraceView, inner: Rows, outer: Rows) -> Rows:
    """Return for each row the one of ``outer`` that encloses its start on the same thread."""
    events = view.events
    if not len(outer) or not len(inner):
        return np.full(len(inner), UNKNOWN, dtype=np.int64)
    both = np.r_[outer, inner]
    thread = (events.pid[both].astype(np.int64) << 32) + events.tid[both]
    # One number that sorts by thread, then by time: the place in each, so that it cannot overflow.
    thread = np.unique(thread, return_inverse=True)[1]
    moment = np.unique(events.start_ns[both], return_inverse=True)[1]
    key = thread * (len(both) + 1) + moment
    order = np.argsort(key[: len(outer)], kind="stable")
    sorted_keys = key[: len(outer)][order]
    place = np.searchsorted(sorted_keys, key[len(outer) :], side="right") - 1
    found = outer[order][np.maximum(place, 0)]
    same = thread[: len(outer)][order][np.maximum(place, 0)] == thread[len(outer) :]
    inside = (inner >= 0) & (place >= 0) & same
    inside &= events.start_ns[inner] <= view.end_ns[found]
    return np.where(inside, found, UNKNOWN)


def _join_external(view: TraceView, work: Rows, host: Rows) -> Rows:
    """Return for each row the one of ``host`` with the same external id."""
    events = view.events
    host = host[events.external[host] >= 0]
    if not len(host):
        return np.full(len(work), UNKNOWN, dtype=np.int64)
    host = host[np.argsort(events.external[host], kind="stable")]
    keys, wanted = events.external[host], events.external[work]
    place = np.minimum(np.searchsorted(keys, wanted), len(host) - 1)
    return np.where((keys[place] == wanted) & (wanted >= 0), host[place], UNKNOWN)


def _first_known(first: Rows, second: Rows) -> Rows:
    return np.where(first >= 0, first, second)
