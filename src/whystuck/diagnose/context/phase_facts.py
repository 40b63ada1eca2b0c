"""What marks of steps tell: in which phase a rank is late, who saves, and who waits for data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.algorithms.times.phases import Phases, measure_phases, name_phase
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.ops.marks import CHECKPOINT, DATALOADER, Marks, slice_ranks

# Two saves are the least; one may be the first, which makes the folder.
_MIN_SAVES = 2
_MIN_LOST = 0.05
_MIN_RATIO = 2.0
# Ranks that wait so much of each step for data are starved of it.
_MIN_STARVED = 0.4
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Saves:
    """How long ``rank`` took to save, and the slowest other one, 0 where nobody else saves.

    Times are medians of ``count`` saves; ``share`` is the part of the time since the first of
    them that could be saved.
    """

    rank: int
    count: int
    took_ms: float
    others_ms: float
    share: float


@dataclass(frozen=True)
class StepMarks:
    """What marks tell of the ranks of a job that goes on."""

    marks: Marks
    table: Collectives
    ranks: frozenset[int]

    def name_phase(self, late: Late) -> str:
        """Return the phase in which ranks are late, ``unknown`` where nothing tells."""
        phases = measure_phases(self.marks, late.group.members)
        if phases is None or not len(self.table.step):
            return "unknown"
        first, last = (
            int(self.table.step[row]) if row >= 0 else default
            for row, default in ((late.first_row, 0), (late.last_row, 1 << 62))
        )
        chosen = phases.select(first, last)
        # In the mean of all steps: what a rank does in every third one is lost in that alone.
        lost_ns = late.lost_share * float(chosen.length_ns.mean()) if len(chosen.steps) else 0.0
        return name_phase(chosen, late.ranks, lost_ns)

    @cached_property
    def input_share(self) -> float:
        """The share of a step in which all ranks wait for data; 0 where that is not marked."""
        phases = self._of_all
        if phases is None or not phases.has(DATALOADER):
            return 0.0
        waits_ns = phases.spent_ns[:, :, DATALOADER].sum(axis=0)
        share = float((waits_ns / phases.length_ns.sum(axis=0)).min())
        return share if share >= _MIN_STARVED else 0.0

    @cached_property
    def slow_saves(self) -> Saves | None:
        """The rank whose last checkpoints, two or more, took far longer than those of its peers."""
        spans = self._saves
        if len(spans) < 2 or not spans.keys() >= self.ranks:  # noqa: PLR2004 - nobody to compare
            return None
        count = min(len(one) for one in spans.values())
        took_ns = np.array([np.diff(one[-count:], axis=1)[:, 0] for one in spans.values()]).T
        column = int(took_ns[-1].argmax())
        rank = list(spans)[column]
        others_ns = np.delete(took_ns, column, axis=1).max(axis=1)
        is_slow = took_ns[:, column] >= _MIN_RATIO * others_ns
        slow = count if is_slow.all() else int(is_slow[::-1].argmin())
        if slow < _MIN_SAVES:
            return None
        lost_ns = took_ns[-slow:, column] - others_ns[-slow:]
        begun_ns = spans[rank][-slow - 1, 1] if slow < len(spans[rank]) else self._begin_ns(rank)
        share = float(lost_ns.sum() / (spans[rank][-1, 1] - begun_ns))
        if share < _MIN_LOST:
            return None
        usual_ms = np.median(took_ns[-slow:, column]) / _NS_PER_MS
        return Saves(
            rank, slow, float(usual_ms), float(np.median(others_ns[-slow:])) / _NS_PER_MS, share
        )

    @cached_property
    def serial_saves(self) -> Saves | None:
        """The only rank that saves checkpoints, when that takes long."""
        if len(self._saves) != 1 or len(self.ranks) < 2:  # noqa: PLR2004 - nobody else is there
            return None
        ((rank, spans),) = self._saves.items()
        took_ns = np.diff(spans, axis=1)
        share = float(took_ns.sum() / (spans[-1, 1] - self._begin_ns(rank)))
        is_long = len(spans) >= _MIN_SAVES and share >= _MIN_LOST
        usual_ms = float(np.median(took_ns)) / _NS_PER_MS
        is_marked = slice_ranks(self.marks).keys() >= self.ranks
        return Saves(rank, len(spans), usual_ms, 0.0, share) if is_long and is_marked else None

    @cached_property
    def _saves(self) -> dict[int, NDArray[np.int64]]:
        """When the checkpoints of each rank that has any began and ended, a line for each."""
        marks, found = self.marks, {}
        for rank, rows in slice_ranks(marks).items():
            begin, end = marks.begin_ns[rows], marks.end_ns[rows]
            is_save = (marks.kind[rows] == CHECKPOINT) & (end > 0) & (begin > 0)
            if is_save.any():
                found[rank] = np.stack([begin[is_save], end[is_save]], axis=1)
        return found

    def _begin_ns(self, rank: int) -> int:
        begin = self.marks.begin_ns[slice_ranks(self.marks)[rank]]
        return int(begin[begin > 0].min())

    @cached_property
    def _of_all(self) -> Phases | None:
        return measure_phases(self.marks, self.ranks)
