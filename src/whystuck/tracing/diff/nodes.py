"""The tree of calls of a usual step: ops and annotations, and the device work that they launched.

Steps mostly make the same calls. Of those whose tree has the commonest shape, times are averaged
call by call; so a tree is as small as one step, however many there were.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.diff.host import KINDS, HostCalls, host_calls
from whystuck.tracing.host.call_trees import CallTree, build_tree
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]

NODE_COLUMNS = (
    "rank",
    "parent",
    "kind",
    "name",
    "sum_ns",
    "self_ns",
    "device_ns",
    "steps",
    "shape",
)
# A larger tree, as of a trace without steps, is one of a whole job.
MAX_NODES = 200_000
THREAD = "thread"
_GROUP = "launch"
_SHAPE_BYTES = 8


@dataclass(frozen=True)
class _Calls:
    """The calls of all steps, with what each is shown as; ``step`` is -1 outside of steps."""

    tree: CallTree
    step: Whole
    kind: Whole
    label: Whole
    device_ns: Whole


def measure_nodes(view: TraceView, options: TraceOptions) -> Table:
    """Measure the tree of calls of a usual step of a rank.

    Threads are at the top, that of the steps first. A call of the runtime is shown as the kernel
    or copy that it launched. Times are means over the ``steps`` that have this ``shape``, in ns;
    ``device_ns`` is that of the work itself.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each call, callers first; ``parent`` is the row of the caller, -1 at the top. No
        rows where the tree is too large.
    """
    del options
    calls = host_calls(view)
    found = _find_calls(view, calls)
    shapes, places = [], []
    thread = _order_threads(found.tree, calls.main_thread)
    words = np.array([hash_name(name) for name in calls.labels[0]], dtype=np.int64)
    for step in range(len(calls.steps)):
        at = np.flatnonzero(found.step == step)
        at = at[np.lexsort((at, thread[at]))]
        places.append(at)
        shapes.append(_hash(found, at, words) if len(at) else "")
    common = Counter(shape for shape in shapes if shape).most_common(1)
    if not common or len(places[shapes.index(common[0][0])]) > MAX_NODES:
        return _make(view.trace.rank, [], [], np.zeros((3, 0), dtype=np.int64), 0, "")
    shape = common[0][0]
    alike = [at for at, one in zip(places, shapes, strict=True) if one == shape]
    return _average(view, calls, found, alike, shape)


def _find_calls(view: TraceView, calls: HostCalls) -> _Calls:
    """Nest ops, annotations and launches; the launches carry what they launched."""
    events, whole = view.events, calls.tree
    launches, work = view.all_launch_rows, view.all_device_rows
    known = launches >= 0
    count = np.bincount(launches[known], minlength=len(events))
    device = np.zeros(len(events), dtype=np.int64)
    np.add.at(device, launches[known], events.duration_ns[work][known])
    label = calls.labels[1][events.name]
    kind = calls.kind[events.category]
    # Of a launch of one piece of work, the name is that of the work.
    single = known & (count[launches] == 1)
    label[launches[single]] = label[work[single]]
    kind[launches[single]] = kind[work[single]]
    category = events.category[whole.row]
    is_shown = np.isin(category, (Category.CPU_OP, Category.USER_ANNOTATION))
    is_shown |= count[whole.row] > 0
    is_shown &= ~(calls.is_step[events.name[whole.row]] & (category == Category.USER_ANNOTATION))
    rows = whole.row[is_shown]
    tree = build_tree(events.start_ns, view.end_ns, calls.thread, rows)
    return _Calls(
        tree,
        calls.steps.find(tree.start_ns),
        np.where(count[tree.row] > 1, len(KINDS), kind[tree.row]),
        label[tree.row],
        device[tree.row],
    )


def _order_threads(tree: CallTree, main: int) -> Whole:
    """Number threads in an order that does not change: main first, the others by their time."""
    count = int(tree.thread.max(initial=-1)) + 1
    spent = np.bincount(tree.thread, weights=tree.self_ns, minlength=count)
    if 0 <= main < count:
        spent[main] = np.inf
    order = np.argsort(-spent, kind="stable")
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    return place[tree.thread]


def _hash(found: _Calls, at: Whole, words: Whole) -> str:
    """Hash the shape of a tree: names and depths, in order; the same for all ranks."""
    digest = hashlib.blake2b(digest_size=_SHAPE_BYTES)
    own = np.c_[found.tree.depth[at], found.kind[at], words[found.label[at]]]
    digest.update(np.ascontiguousarray(own, dtype=np.int64).tobytes())
    return digest.hexdigest()


def hash_name(name: str) -> int:
    """Return a number for a name that is the same in every process."""
    data = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_SHAPE_BYTES)
    return int.from_bytes(data.digest(), "little", signed=True)


def _average(
    view: TraceView, calls: HostCalls, found: _Calls, alike: list[Whole], shape: str
) -> Table:
    tree, labels = found.tree, calls.labels[0]
    spent = tree.end_ns - tree.start_ns
    values = np.array([[one[at] for one in (spent, tree.self_ns, found.device_ns)] for at in alike])
    means = np.rint(values.mean(axis=0)).astype(np.int64)
    first = alike[0]
    kinds = (*KINDS, _GROUP)
    # Threads are nodes of their own, at the top, before what they called.
    thread = tree.thread[first]
    begins = np.flatnonzero(np.r_[True, thread[1:] != thread[:-1]])
    shift = np.cumsum(np.isin(np.arange(len(first)), begins))
    place = np.full(len(tree) + 1, -1, dtype=np.int64)
    place[first] = np.arange(len(first)) + shift
    own_thread = begins[shift - 1] + shift - 1
    parent = np.where(tree.parent[first] >= 0, place[tree.parent[first]], -1)
    parent = np.where(parent >= 0, parent, own_thread)
    total = len(first) + len(begins)
    at = place[first]
    sums = np.zeros((3, total), dtype=np.int64)
    sums[:, at] = means
    heads = np.setdiff1d(np.arange(total), at)
    names: list[str] = [""] * total
    shown: list[str] = [THREAD] * total
    above = np.full(total, -1, dtype=np.int64)
    above[at] = parent
    for where, kind, label in zip(
        at.tolist(), found.kind[first].tolist(), found.label[first].tolist(), strict=True
    ):
        shown[where], names[where] = kinds[kind], labels[label]
    for number, where in enumerate(heads.tolist()):
        names[where] = "main" if number == 0 else f"other {number}"
    roots = np.isin(above, heads)
    np.add.at(sums[0], above[roots], sums[0][roots])
    return _make(view.trace.rank, above.tolist(), [shown, names], sums, len(alike), shape)


def _make(
    rank: int, parent: list[int], texts: list[list[str]], sums: Whole, steps: int, shape: str
) -> Table:
    kinds, names = texts or ([], [])
    count = len(parent)
    return Table(
        {
            "rank": np.full(count, rank, dtype=np.int64),
            "parent": np.array(parent, dtype=np.int64),
            "kind": text_column(kinds),
            "name": text_column(names),
            "sum_ns": sums[0],
            "self_ns": sums[1],
            "device_ns": sums[2],
            "steps": np.full(count, steps, dtype=np.int64),
            "shape": text_column([shape] * count),
        }
    )


NODES = Metric("diff_nodes", NODE_COLUMNS, measure_nodes, is_default=False)
