"""What products of matrices, convolutions, attention and norms reach of what a device can do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category, Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import Groups, group_rows
from whystuck.tracing.host.op_costs import FORMULAS, cost_op
from whystuck.tracing.host.op_shapes import OpCall, parse_call
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "class",
    "op",
    "phase",
    "dtype",
    "shapes",
    "count",
    "flops",
    "bytes",
    "time_ns",
    "tflops",
    "gbps",
    "flop_per_byte",
    "values",
)
_BACKWARD = "autograd::engine::evaluate_function"
_ARGUMENTS = ("input_dims:text", "input_types:text", "concrete_inputs:text")


@dataclass(frozen=True)
class _Calls:
    """Calls of ops with a formula: the row, its time in ns or -1, and whether it is backward."""

    row: Rows
    time: NDArray[np.int64]
    is_backward: NDArray[np.bool_]


def measure_roofline(view: TraceView, options: TraceOptions) -> Table:
    """Measure the speed of ops whose cost follows from their shapes.

    Of nested ops with a formula the outermost counts. The time is that of the work of devices
    launched in a call, or, in a trace without any device, that of the call itself. Formulas and
    their sources are in `op_costs`.

    Args:
        view: The trace; it must have recorded shapes.
        options: Not used.

    Returns:
        A row an op, pass, shapes and values of arguments, those that took longest first. ``flops``
        and ``bytes`` are of one call, -1 when unknown; ``tflops`` (10^12 operations a second),
        ``gbps`` (10^9 bytes a second) and ``flop_per_byte`` are NaN then, and where no time is
        known.
    """
    del options
    calls = _find_calls(view)
    texts = [view.trace.get(name).at(calls.row) for name in _ARGUMENTS]
    name = view.events.name[calls.row]
    groups = group_rows(name, calls.is_backward, *texts)
    first, names = groups.first, view.trace.names
    parsed = [
        parse_call(*(_pick(view, int(text[row])) for text in texts)) for row in first.tolist()
    ]
    named = [names[one] for one in name[first].tolist()]
    columns = {
        "rank": view.rank_column(len(groups)),
        "class": text_column([str(FORMULAS[one][0]) for one in named]),
        "op": text_column(named),
        "phase": text_column(
            ["backward" if one else "forward" for one in calls.is_backward[first].tolist()]
        ),
        "dtype": text_column([call.type for call in parsed]),
        "shapes": text_column([_write_shapes(call) for call in parsed]),
        "count": groups.count,
        **_rate(groups, calls.time, named, parsed),
        "values": text_column([", ".join(filter(None, call.values)) for call in parsed]),
    }
    table = Table({name: columns[name] for name in _COLUMNS})
    return table.take(np.argsort(-table["time_ns"], kind="stable"))


def _pick(view: TraceView, index: int) -> str:
    return view.trace.texts[index] if index >= 0 else ""


def _write_shapes(call: OpCall) -> str:
    return " ".join("x".join(map(str, shape)) for shape in call.shapes if shape)


def _rate(
    groups: Groups, time: NDArray[np.int64], names: list[str], calls: list[OpCall]
) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
    costs = [cost_op(name, call) for name, call in zip(names, calls, strict=True)]
    flops = np.array([cost.operations for cost in costs], dtype=np.int64)
    moved = np.array(
        [
            cost.elements * call.element_bytes if cost.elements >= 0 and call.type else -1
            for cost, call in zip(costs, calls, strict=True)
        ],
        dtype=np.int64,
    )
    is_timed = time > 0
    timed, total = groups.sum(is_timed), groups.sum(np.where(is_timed, time, 0))
    operations = np.where(flops >= 0, flops, np.nan)
    transfer = np.where(moved >= 0, moved, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "flops": flops,
            "bytes": moved,
            "time_ns": np.where(timed > 0, total, -1),
            "tflops": np.where(timed > 0, operations * timed / total / 1e3, np.nan),
            "gbps": np.where(timed > 0, transfer * timed / total, np.nan),
            "flop_per_byte": np.where(moved > 0, operations / transfer, np.nan),
        }


def _find_calls(view: TraceView) -> _Calls:
    events, tree = view.events, view.ops
    names = view.trace.names
    has_formula = np.fromiter((name in FORMULAS for name in names), np.bool_, len(names))
    is_backward = np.fromiter((name.startswith(_BACKWARD) for name in names), np.bool_, len(names))
    name = events.name[tree.row]
    is_meant = has_formula[name] & (events.category[tree.row] == Category.CPU_OP)
    outer = tree.nesting.outermost(is_meant)
    is_call = outer == np.arange(len(tree))
    if view.cut_ns is not None:
        is_call &= events.start_ns[tree.row] < view.cut_ns
    places = np.flatnonzero(is_call)
    if len(view.all_device_rows):
        at = view.launching_ops
        holder = outer[at[at >= 0]] if len(tree) else at[:0]
        took = events.duration_ns[view.device_rows][at >= 0]
        time = np.full(len(tree), 0, dtype=np.int64)
        np.add.at(time, holder[holder >= 0], took[holder >= 0])
        time = np.where(time > 0, time, -1)[places]
    else:
        time = events.duration_ns[tree.row[places]]
    is_in_backward = tree.nesting.outermost(is_backward[name]) >= 0
    return _Calls(tree.row[places], time, is_in_backward[places])


METRIC = Metric("roofline", _COLUMNS, measure_roofline, detail=Detail.LEAN | Detail.SHAPES)
