"""Steps on the host's clock, of the profiler or of optimizers; a trace without is one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView, once

Times = NDArray[np.int64]

NO_STEP = -1
# By what steps are known.
PROFILER, OPTIMIZER = "profiler", "optimizer"


@dataclass(frozen=True)
class Steps:
    """Steps in order of time: number, start and end in ns.

    ``mark`` is `PROFILER` or `OPTIMIZER`; empty for a trace taken as one whole.
    """

    number: NDArray[np.int64]
    start: Times
    end: Times
    mark: str = ""

    def __len__(self) -> int:
        return len(self.number)

    @property
    def are_known(self) -> bool:
        """Whether the trace has steps, and is not taken as one whole."""
        return bool((self.number != NO_STEP).any())

    def find(self, at: Times) -> NDArray[np.int64]:
        """Return the place of the step at each time, or -1 between steps."""
        if not len(self):
            return np.full(len(at), -1, dtype=np.int64)
        place = np.searchsorted(self.start, at, side="right") - 1
        return np.where((place >= 0) & (at < self.end[place]), place, -1)

    def number_at(self, at: Times) -> NDArray[np.int64]:
        """Return the number of the step at each time, `NO_STEP` between steps."""
        place = self.find(at)
        if not len(self):
            return place
        return np.where(place >= 0, self.number[place], NO_STEP)


@once
def find_steps(view: TraceView) -> Steps:
    """Find the steps of the window.

    Args:
        view: The trace.

    Returns:
        The steps that the profiler marked, or else those that end with the step of an optimizer.
        Without either the time from the first to the last event of the window is one step with the
        number -1; a trace without events has none.
    """
    number, start, end = view.steps
    if len(number):
        kept = np.ones(len(number), dtype=np.bool_)
        if view.cut_ns is not None:
            kept = start < view.cut_ns
        # A step does not end after the next one has begun.
        limit = np.r_[start[1:], np.iinfo(np.int64).max]
        return Steps(number[kept], start[kept], np.minimum(end, limit)[kept], PROFILER)
    made = view.optimizer_steps
    if len(made.number):
        count = len(made.number) - (made.is_cut and not view.options.all_steps)
        return Steps(made.number[:count], made.start[:count], made.end[:count], OPTIMIZER)
    rows = np.r_[view.host_rows, view.device_rows]
    if not len(rows):
        none = np.empty(0, dtype=np.int64)
        return Steps(none, none, none)
    first, last = view.events.start_ns[rows].min(), view.end_ns[rows].max()
    return Steps(np.array([NO_STEP]), np.array([first]), np.array([last]))


_COLUMNS = ("rank", "step", "start_ns", "end_ns", "mark")


def measure_steps(view: TraceView, options: TraceOptions) -> Table:
    """List the steps of the window, on the host's clock.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step; one with the number -1 for a trace without marks of steps. ``mark`` tells
        whether they are those of the profiler or of the optimizer.
    """
    del options
    steps = find_steps(view)
    rank = view.rank_column(len(steps))
    mark = text_column([steps.mark] * len(steps))
    columns = (rank, steps.number, steps.start, steps.end, mark)
    return Table.of(_COLUMNS, columns)


METRIC = Metric("steps", _COLUMNS, measure_steps)
