"""How much of each step is the forward pass, the backward pass, and the optimizer."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category, Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows
from whystuck.tracing.host.spans import find_data_waits, match_names
from whystuck.tracing.host.steps import find_steps
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView


class Phase(IntEnum):
    """What a training step is made of; of nested ones the lower number counts."""

    DATA = 0
    OPTIMIZER = 1
    BACKWARD = 2
    FORWARD = 3
    OTHER = 4


_BACKWARD = re.compile(r"autograd::engine::.*")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#.*")
_COLUMNS = ("rank", "step", "phase", "ops", "host_ns", "device_ns", "device_share")


def find_phases(view: TraceView) -> NDArray[np.int8]:
    """Tell the phase of each place in ``view.ops``.

    Data is what lies in a wait for a batch; the optimizer what lies in its annotation; backward
    what a node of autograd does, recomputed forward ops too; forward what is or lies in an op that
    autograd numbered.

    Args:
        view: The trace.

    Returns:
        A `Phase` for each place.
    """
    tree, events = view.ops, view.events
    names, name = view.trace.names, view.events.name[view.ops.row]
    waits = np.zeros(len(tree), dtype=np.bool_)
    place = tree.places_of(find_data_waits(view))
    waits[place[place >= 0]] = True
    numbers = view.trace.get("autograd_sequence").at(tree.row)
    is_op = events.category[tree.row] == Category.CPU_OP
    marks = {
        Phase.FORWARD: is_op & (numbers >= 0),
        Phase.BACKWARD: match_names(names, _BACKWARD)[name],
        Phase.OPTIMIZER: match_names(names, _OPTIMIZER)[name],
        Phase.DATA: waits,
    }
    phase = np.full(len(tree), Phase.OTHER, dtype=np.int8)
    for kind, is_marked in marks.items():
        phase[tree.nesting.outermost(is_marked) >= 0] = kind
    return phase


def measure_phases(view: TraceView, options: TraceOptions) -> Table:
    """Measure the phases of each step.

    An op belongs to the step in which it began, and work of devices to the op that launched it.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step and phase that occurs: how many outermost ops it has, their time on the host,
        and the time of the work that they launched. ``device_share`` is the part of that step's
        work of devices, NaN where there is none.
    """
    del options
    tree, events, steps = view.ops, view.events, find_steps(view)
    phase = find_phases(view)
    outer, kind = _outermost_ops(view, phase)
    step = steps.find(events.start_ns[tree.row[outer]])
    at, rows = view.launching_ops, view.device_rows
    begun = np.where(view.launch_rows >= 0, view.launch_rows, rows)
    work_step = steps.find(events.start_ns[begun])
    work_kind = np.where(at >= 0, phase[at], Phase.OTHER) if len(tree) else at * 0 + Phase.OTHER
    groups = group_rows(np.r_[step, work_step], np.r_[kind, work_kind])
    none = np.zeros(len(rows), dtype=np.int64)
    device = groups.sum(np.r_[np.zeros(len(outer), dtype=np.int64), events.duration_ns[rows]])
    of_step, of_kind = np.r_[step, work_step][groups.first], np.r_[kind, work_kind][groups.first]
    total = (
        np.bincount(of_step + 1, weights=device, minlength=1)[of_step + 1]
        if len(groups)
        else device
    )
    texts = text_column([Phase(int(one)).name.lower() for one in of_kind])
    number = np.r_[steps.number, np.int64(-1)][of_step]
    columns = (
        view.rank_column(len(groups)),
        number,
        texts,
        groups.sum(np.r_[np.ones(len(outer), dtype=np.int64), none]),
        groups.sum(np.r_[events.duration_ns[tree.row[outer]], none]),
        device,
        np.where(total > 0, device / np.maximum(total, 1), np.nan),
    )
    return Table.of(_COLUMNS, columns).take(of_step >= 0)


def _outermost_ops(view: TraceView, phase: NDArray[np.int8]) -> tuple[Rows, NDArray[np.int8]]:
    """Return the places of ops in no other op of their phase, and their phases."""
    tree, events = view.ops, view.events
    is_op = events.category[tree.row] == Category.CPU_OP
    if view.cut_ns is not None:
        is_op &= events.start_ns[tree.row] < view.cut_ns
    parent = tree.nesting.parent
    above = tree.nesting.innermost(events.category[tree.row] == Category.CPU_OP)
    around = np.where(parent >= 0, above[parent], -1) if len(tree) else parent
    is_outer = is_op & ((around < 0) | (phase[around] != phase))
    places = np.flatnonzero(is_outer)
    return places, phase[places]


METRIC = Metric(
    "phases", _COLUMNS, measure_phases, is_default=False, detail=Detail.LEAN | Detail.AUTOGRAD
)
