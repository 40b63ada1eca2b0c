"""Python functions and modules: their time on the host, and the work that they launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.host.autograd_links import backward_work, link_passes
from whystuck.tracing.host.device_work import sum_under, sum_work_under
from whystuck.tracing.host.spans import match_names
from whystuck.tracing.host.trees import HostTree
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_FRAME_COLUMNS = ("rank", "name", "count", "sum_ns", "self_ns", "device_ns", "kernels")
_MODULE_COLUMNS = (
    "rank",
    "name",
    "calls",
    "host_ns",
    "device_ns",
    "kernels",
    "backward_host_ns",
    "backward_device_ns",
)
_MODULE = re.compile(r"^nn\.Module: ")
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class _Frames:
    """Frames as a tree, and a number for the name of each; ``names`` are these names."""

    tree: HostTree
    kind: NDArray[np.int64]
    names: tuple[str, ...]


def _make_frames(view: TraceView, tree: HostTree, drop: re.Pattern[str]) -> _Frames:
    """Number frames by their names without some part, such as the address of an object."""
    numbers: dict[str, int] = {}
    used = np.unique(view.events.name[tree.row])
    of_name = np.zeros(len(view.trace.names), dtype=np.int64)
    for one in used.tolist():
        name = drop.sub("", view.trace.names[one])
        of_name[one] = numbers.setdefault(name, len(numbers))
    return _Frames(tree, of_name[view.events.name[tree.row]], tuple(numbers))


def _measure_calls(view: TraceView, frames: _Frames) -> dict[str, NDArray[np.int64]]:
    """Count calls in the window, and add up their time and that of the work under them."""
    tree, events, kind = frames.tree, view.events, frames.kind
    size = len(frames.names)
    kept = np.ones(len(tree), dtype=np.bool_)
    if view.cut_ns is not None:
        kept = events.start_ns[tree.row] < view.cut_ns
    whole, own = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    outer = kept & tree.nesting.is_outermost_of(kind)
    np.add.at(whole, kind[outer], events.duration_ns[tree.row[outer]])
    np.add.at(own, kind[kept], tree.nesting.self_ns[kept])
    at = tree.find_launching(events, view.device_rows, view.launch_rows)
    time, kernels = sum_work_under(view, tree, kind, at)
    count = np.bincount(kind[kept], minlength=size)
    return {"count": count, "sum": whole, "own": own, "device": time, "kernels": kernels}


def measure_frames(view: TraceView, options: TraceOptions) -> Table:
    """Measure Python functions.

    A recursive call counts in ``count`` and ``self_ns``, but adds no time to ``sum_ns``.
    ``device_ns`` adds the durations of work up that was launched in the function or in what it
    called, on its own thread: what autograd launches in a backward pass is not in it.

    Args:
        view: The trace; it must have recorded stacks.
        options: Not used.

    Returns:
        A row a function, as the trace names it but for addresses, those with most time of their
        own first.
    """
    del options
    frames = _make_frames(view, view.frames, _ADDRESS)
    found = _measure_calls(view, frames)
    columns = (
        view.rank_column(len(frames.names)),
        text_column(frames.names),
        *(found[name] for name in ("count", "sum", "own", "device", "kernels")),
    )
    table = Table.of(_FRAME_COLUMNS, columns)
    table = table.take(table["count"] > 0)
    return table.take(np.argsort(-table["self_ns"], kind="stable"))


def measure_modules(view: TraceView, options: TraceOptions) -> Table:
    """Measure modules of ``torch.nn``.

    The backward pass of a module are the nodes of autograd whose ops ran in it, by their sequence
    numbers; ``backward_host_ns`` and ``backward_device_ns`` are the time of these nodes, and that
    of the work which they launched.

    Args:
        view: The trace; it must have recorded stacks.
        options: Not used.

    Returns:
        A row a module, such as ``Linear_0``, those whose calls took longest first.
    """
    del options
    events = view.events
    is_module = match_names(view.trace.names, _MODULE, is_whole=False)
    rows = np.flatnonzero(events.category == Category.PYTHON)
    tree = HostTree.of_rows(events, rows[is_module[events.name[rows]]])
    frames = _make_frames(view, tree, _MODULE)
    found = _measure_calls(view, frames)
    links = link_passes(view)
    at = tree.find(events, links.forward)
    took, work = events.duration_ns[links.backward], backward_work(view, links)
    columns = (
        view.rank_column(len(frames.names)),
        text_column(frames.names),
        *(found[name] for name in ("count", "sum", "device", "kernels")),
        *(sum_under(tree, frames.kind, at, values)[0] for values in (took, work)),
    )
    table = Table.of(_MODULE_COLUMNS, columns)
    table = table.take(table["calls"] > 0)
    return table.take(np.argsort(-table["host_ns"], kind="stable"))


METRIC = Metric("python_frames", _FRAME_COLUMNS, measure_frames, is_default=False)
MODULES = Metric("modules", _MODULE_COLUMNS, measure_modules, is_default=False)
