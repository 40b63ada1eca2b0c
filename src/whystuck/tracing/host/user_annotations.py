"""What people marked in their code, on the host and on the devices, and the work under it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, concat_tables, text_column
from whystuck.evidence.traces.events import Category, is_one_of
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.host.device_work import sum_work_under
from whystuck.tracing.host.trees import HostTree, Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "kind",
    "name",
    "count",
    "sum_ns",
    "mean_ns",
    "std_ns",
    "min_ns",
    "max_ns",
    "device_ns",
    "kernels",
)
_WORK_COLUMNS = (
    "rank",
    "device",
    "stream",
    "name",
    "start_ns",
    "duration_ns",
    "correlation",
    "device_annotation",
    "host_annotation",
)


def _find_annotations(view: TraceView) -> Rows:
    category = view.events.category
    return np.flatnonzero(is_one_of(category, (Category.USER_ANNOTATION, Category.GPU_ANNOTATION)))


def _find_host(view: TraceView) -> tuple[HostTree, Rows]:
    """Annotations of the host, and the place of the innermost around each launch."""
    tree = HostTree.of(view.events, (Category.USER_ANNOTATION,))
    return tree, tree.find_launching(view.events, view.device_rows, view.launch_rows)


def _find_device(view: TraceView) -> tuple[HostTree, Rows]:
    """Annotations of devices, and the place of the innermost in which each work began."""
    tree = HostTree.of(view.events, (Category.GPU_ANNOTATION,))
    return tree, tree.find(view.events, view.device_rows)


def _is_in_window(view: TraceView, rows: Rows) -> NDArray[np.bool_]:
    """Whether the host began an annotation in the window; one of a device has the same id there."""
    events = view.events
    if view.cut_ns is None:
        return np.ones(len(rows), dtype=np.bool_)
    begun = events.start_ns[rows]
    host = np.flatnonzero(events.category == Category.USER_ANNOTATION)
    host = host[np.argsort(events.external[host], kind="stable")]
    is_device = events.category[rows] == Category.GPU_ANNOTATION
    if len(host):
        ids, wanted = events.external[host], events.external[rows]
        at = np.minimum(np.searchsorted(ids, wanted), len(host) - 1)
        is_joined = is_device & (ids[at] == wanted) & (wanted > 0)
        begun = np.where(is_joined, events.start_ns[host[at]], begun)
    kept: NDArray[np.bool_] = begun < view.cut_ns
    return kept


def measure_annotations(view: TraceView, options: TraceOptions) -> Table:
    """Measure annotations by name.

    ``device_ns`` adds the durations of the work of devices up that was launched in annotations of
    that name on the host, or that began in them on the stream of a device, ``kernels`` is how many
    these are. Work under two nested annotations of one name counts once.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a kind (``host`` or ``device``) and name, those that took longest first.
        ``std_ns`` is NaN for a single one.
    """
    del options
    tables = [
        _measure_kind(view, "host", *_find_host(view)),
        _measure_kind(view, "device", *_find_device(view)),
    ]
    return concat_tables(tables)


def _measure_kind(view: TraceView, kind: str, tree: HostTree, at: Rows) -> Table:
    events = view.events
    rows = tree.row[_is_in_window(view, tree.row)]
    groups = group_rows(events.name[rows])
    duration = events.duration_ns[rows]
    time, kernels = sum_work_under(view, tree, events.name[tree.row].astype(np.int64), at)
    name = events.name[rows][groups.first]
    columns = (
        view.rank_column(len(groups)),
        text_column([kind] * len(groups)),
        pick_texts(view.trace.names, name),
        groups.count,
        groups.sum(duration),
        groups.mean(duration),
        groups.std(duration),
        groups.min(duration),
        groups.max(duration),
        time[name],
        kernels[name],
    )
    table = Table.of(_COLUMNS, columns)
    return table.take(np.argsort(-table["sum_ns"], kind="stable"))


METRIC = Metric("annotations", _COLUMNS, measure_annotations, of=_find_annotations)


def measure_annotated_work(view: TraceView, options: TraceOptions) -> Table:
    """List the work of devices with the innermost annotation around it.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a kernel, copy or fill, in the order of the file. ``device_annotation`` is the one
        on its stream in which it began, ``host_annotation`` the one in which it was launched;
        empty where there is none.
    """
    del options
    events, rows, names = view.events, view.device_rows, view.trace.names
    named = np.append(events.name, np.int32(-1))
    inner = []
    for tree, at in (_find_device(view), _find_host(view)):
        inner.append(pick_texts(names, named[tree.rows_at(at)]))
    columns = (
        view.rank_column(len(rows)),
        events.device[rows].astype(np.int64),
        events.stream[rows].astype(np.int64),
        pick_texts(names, events.name[rows]),
        events.start_ns[rows],
        events.duration_ns[rows],
        events.correlation[rows],
        *inner,
    )
    return Table.of(_WORK_COLUMNS, columns)


WORK = Metric(
    "annotated_work", _WORK_COLUMNS, measure_annotated_work, is_default=False, is_per_event=True
)
