"""What the tables of a comparison share: steps, threads, the tree of calls, names without noise."""

from __future__ import annotations

import re
from functools import cached_property
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category
from whystuck.tracing.host.call_trees import CallTree, build_tree, inherit
from whystuck.tracing.host.optimizer_steps import key_threads
from whystuck.tracing.host.spans import find_data_waits
from whystuck.tracing.host.steps import OPTIMIZER, Steps, find_steps
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]

STEP_NAME = "ProfilerStep"
_KEPT = "_calls_for_comparison"

# How events are told apart in the tables of a comparison.
KIND_NAMES = {
    Category.CPU_OP: "op",
    Category.USER_ANNOTATION: "annotation",
    Category.PYTHON: "python",
    Category.RUNTIME: "call",
    Category.DRIVER: "call",
    Category.KERNEL: "kernel",
    Category.MEMCPY: "copy",
    Category.MEMSET: "copy",
    Category.GPU_ANNOTATION: "device annotation",
    Category.SYNC: "sync",
    Category.OVERHEAD: "overhead",
    Category.COUNTER: "counter",
    Category.OTHER: "other",
}
KINDS = tuple(dict.fromkeys(KIND_NAMES.values()))
_CALLERS = (
    Category.CPU_OP,
    Category.USER_ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
)
_LINE = re.compile(r"\(\d+\)(?=: )")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_NUMBERED = re.compile(r"ProfilerStep\s*#\d+")


class HostCalls:
    """The calls of the host in the steps of a trace."""

    def __init__(self, view: TraceView) -> None:
        self._view = view

    @cached_property
    def steps(self) -> Steps:
        """The steps of the window of the analysis; the whole trace where it has none."""
        return find_steps(self._view)

    @cached_property
    def thread(self) -> Whole:
        """A number for the thread of each event, from 0."""
        events = self._view.events
        key = (events.pid.astype(np.int64) << 32) + (events.tid.astype(np.int64) + 2**31)
        number: Whole = np.unique(key, return_inverse=True)[1].astype(np.int64)
        return number

    @cached_property
    def tree(self) -> CallTree:
        """Ops, annotations, Python frames and calls of the runtime that begin in a step."""
        view = self._view
        rows = view.host_rows
        rows = rows[np.isin(view.events.category[rows], _CALLERS)]
        # An annotation around an op of the same time holds it: it comes first.
        rows = rows[np.argsort(view.events.category[rows] == Category.CPU_OP, kind="stable")]
        rows = rows[self.steps.find(view.events.start_ns[rows]) >= 0]
        return build_tree(view.events.start_ns, view.end_ns, self.thread, rows)

    @cached_property
    def main_thread(self) -> int:
        """The thread of the steps; where it is unknown, the one in which calls take most time."""
        view, tree = self._view, self.tree
        if not len(tree):
            return -1
        is_step = self.is_step[view.events.name[tree.row]]
        is_step &= view.events.category[tree.row] == Category.USER_ANNOTATION
        if is_step.any():
            return int(tree.thread[is_step.argmax()])
        if self.steps.mark == OPTIMIZER:
            is_mine = key_threads(view.trace, tree.row) == view.optimizer_steps.thread
            return int(tree.thread[is_mine.argmax()])
        spent = np.bincount(tree.thread, weights=tree.self_ns)
        return int(spent.argmax())

    @cached_property
    def is_step(self) -> NDArray[np.bool_]:
        """Whether each name of the trace is that of a profiler step."""
        names = self._view.trace.names
        return np.array([bool(_NUMBERED.fullmatch(name)) for name in names], dtype=np.bool_)

    @cached_property
    def is_loading(self) -> NDArray[np.bool_]:
        """Whether each event of the tree is, or is below, a data loader that gives a batch."""
        rows = self.tree.row
        own = np.where(np.isin(rows, find_data_waits(self._view)), 1, -1)
        return inherit(self.tree, own.astype(np.int64)) > 0

    @cached_property
    def labels(self) -> tuple[tuple[str, ...], Whole]:
        """Names without what differs from run to run, and which of them each name becomes."""
        seen: dict[str, int] = {}
        made = [seen.setdefault(clean_name(name), len(seen)) for name in self._view.trace.names]
        return tuple(seen), np.array(made, dtype=np.int64)

    @cached_property
    def kind(self) -> NDArray[np.int64]:
        """The position in `KINDS` of each category."""
        table = np.full(max(Category) + 1, -1, dtype=np.int64)
        for category, name in KIND_NAMES.items():
            table[category] = KINDS.index(name)
        return table


def host_calls(view: TraceView) -> HostCalls:
    """Return the calls of a trace; those of one view are worked out once."""
    kept = vars(view)
    if _KEPT not in kept:
        # They go with the view: a strong reference back would keep both until a collection.
        kept[_KEPT] = HostCalls(proxy(view))
    found: HostCalls = kept[_KEPT]
    return found


def clean_name(name: str) -> str:
    """Leave out of a name what differs between runs: numbers of steps and lines, addresses."""
    if _NUMBERED.fullmatch(name):
        return STEP_NAME
    return _ADDRESS.sub("0x", _LINE.sub("", name))
