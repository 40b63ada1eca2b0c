"""How long each rank spends in each phase of a step, from the marks of its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.marks import (
    BACKWARD,
    CHECKPOINT,
    DATALOADER,
    FORWARD,
    KINDS,
    OPTIMIZER,
    USER,
    Marks,
    slice_ranks,
)

Times = NDArray[np.float64]
Steps = NDArray[np.int64]

# What a rank does in these is its own work; a backward pass waits for collectives, too.
OWN = (DATALOADER, FORWARD, OPTIMIZER, CHECKPOINT)
# A phase is the reason if it is so much of what is lost.
_MIN_PART = 0.6
_MIN_STEPS = 10
# A step that lasts longer than this times the usual one has a pause in it.
_MAX_USUAL = 20.0


@dataclass(frozen=True)
class Phases:
    """Times in ns of the ``ranks`` in steps that all of them marked.

    ``spent_ns`` has a line for each step, a column for each rank, a layer for each of `KINDS`.
    ``before_ns`` is the time from the end of the step before to the begin of the backward pass, 0
    where that is not marked. ``length_ns`` is that of the whole step.
    """

    ranks: tuple[int, ...]
    steps: Steps
    spent_ns: Times
    before_ns: Times
    length_ns: Times

    def has(self, kind: int) -> bool:
        """Return whether each rank marked a phase."""
        return bool((self.spent_ns[:, :, kind].sum(axis=0) > 0).all())

    def select(self, first: int, last: int) -> Phases:
        """Return the steps of a span, both ends included."""
        here = (self.steps >= first) & (self.steps <= last)
        return Phases(
            self.ranks,
            self.steps[here],
            self.spent_ns[here],
            self.before_ns[here],
            self.length_ns[here],
        )


def measure_phases(marks: Marks, ranks: Iterable[int]) -> Phases | None:
    """Measure the phases of some ranks.

    Args:
        marks: All marks.
        ranks: The ranks to compare.

    Returns:
        The times, None when a rank has no marks, or they have too few steps in common.
    """
    rows = slice_ranks(marks)
    chosen = tuple(sorted(ranks))
    if not chosen or not rows.keys() >= set(chosen):
        return None
    # Marks of the job's own, and times of devices, may reach over any number of steps.
    is_phase = marks.kind < USER
    common = _find_common([np.unique(marks.step[rows[one]][is_phase[rows[one]]]) for one in chosen])
    if len(common) < _MIN_STEPS:
        return None
    shape = (len(common), len(chosen))
    spent_ns = np.zeros((*shape, len(KINDS)))
    backward_ns, end_ns = np.zeros(shape), np.zeros(shape)
    for column, rank in enumerate(chosen):
        own = rows[rank]
        is_known = is_phase[own] & np.isin(marks.step[own], common) & (marks.end_ns[own] > 0)
        begin, end = marks.begin_ns[own][is_known], marks.end_ns[own][is_known]
        kind = marks.kind[own][is_known]
        line = np.searchsorted(common, marks.step[own][is_known]).astype(np.int64)
        np.add.at(spent_ns[:, column], (line, kind), (end - begin).astype(np.float64))
        np.maximum.at(end_ns[:, column], line, end.astype(np.float64))
        first = np.full(len(common), np.inf)
        np.minimum.at(first, line[kind == BACKWARD], begin[kind == BACKWARD].astype(np.float64))
        backward_ns[:, column] = np.where(np.isinf(first), 0, first)
    # The first step has none before it, whose end would be its begin; of the last, all may be open.
    is_over = np.asarray((end_ns > 0).all(axis=1))
    follows = np.flatnonzero((np.diff(common) == 1) & is_over[1:] & is_over[:-1]) + 1
    length_ns = end_ns[follows] - end_ns[follows - 1]
    before_ns = np.where(backward_ns[follows] > 0, backward_ns[follows] - end_ns[follows - 1], 0.0)
    usual_ns = np.median(length_ns, axis=0) if len(follows) else np.zeros(len(chosen))
    is_usual = (length_ns <= _MAX_USUAL * usual_ns).all(axis=1)
    kept = np.flatnonzero(is_usual & _is_marked_alike(spent_ns[follows]))
    return Phases(
        chosen, common[follows][kept], spent_ns[follows][kept], before_ns[kept], length_ns[kept]
    )


def name_phase(phases: Phases, late: Iterable[int], lost_ns: float) -> str:
    """Name the phase in which ranks take longer than the others.

    Args:
        phases: The times of all ranks that are compared, in the steps in question.
        late: The ranks that are late.
        lost_ns: What the others wait for them in a step.

    Returns:
        One of `KINDS`, ``host`` for time between the phases, or ``unknown``.
    """
    is_late = np.isin(phases.ranks, list(late))
    if len(phases.steps) < _MIN_STEPS or is_late.all() or not is_late.any():
        return "unknown"
    least_ns = _MIN_PART * lost_ns
    known = [kind for kind in OWN if phases.has(kind) or kind == CHECKPOINT]
    excess = {kind: _exceed(phases.spent_ns[:, :, kind].mean(axis=0), is_late) for kind in known}
    most = max(excess, key=lambda kind: excess[kind], default=None)
    if most is not None and excess[most] >= least_ns:
        return KINDS[most]
    if not ((phases.before_ns > 0).all() and {DATALOADER, FORWARD} <= set(known)):
        return "unknown"
    told_ns = sum(excess.get(kind, 0.0) for kind in (DATALOADER, FORWARD, CHECKPOINT))
    before_ns = _exceed(phases.before_ns.mean(axis=0), is_late)
    if before_ns - told_ns >= least_ns:
        return "host"
    rest_ns = lost_ns - before_ns - excess.get(OPTIMIZER, 0.0)
    return KINDS[BACKWARD] if rest_ns >= least_ns else "unknown"


def _is_marked_alike(spent_ns: Times) -> NDArray[np.bool_]:
    """Return in which steps a phase that each rank marks at times is marked by all, or by none.

    Else what one of them spends in it looks like time between its phases.
    """
    alike = np.ones(len(spent_ns), dtype=np.bool_)
    for kind in (DATALOADER, FORWARD, OPTIMIZER):
        is_there = spent_ns[:, :, kind] > 0
        if is_there.any(axis=0).all():
            alike &= is_there.all(axis=1) | ~is_there.any(axis=1)
    return alike


def _exceed(usual_ns: Times, is_late: NDArray[np.bool_]) -> float:
    """Return how much longer than the median of the others the fastest of the late ranks takes."""
    return float(usual_ns[is_late].min() - np.median(usual_ns[~is_late]))


def _find_common(steps: list[Steps]) -> Steps:
    common = steps[0]
    for one in steps[1:]:
        common = np.intersect1d(common, one)
    return common
