"""What marks of steps tell: in which phase a rank is late, who saves, and who waits for data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

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

    Times are medians of one save; ``share`` is the part of the whole time that could be saved.
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
        return name_phase(phases.select(first, last), late.ranks, late.lost_ns)

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
        """The rank that takes far longer than its peers for its checkpoints."""
        saves = self._list_saves()
        if len(saves) < 2:  # noqa: PLR2004 - nobody to compare
            return None
        first, second, *_ = sorted(saves, key=lambda one: -one.took_ms)
        lost = first.share * (1 - second.took_ms / first.took_ms)
        if first.took_ms < _MIN_RATIO * second.took_ms or lost < _MIN_LOST:
            return None
        return Saves(first.rank, first.count, first.took_ms, second.took_ms, lost)

    @cached_property
    def serial_saves(self) -> Saves | None:
        """The only rank that saves checkpoints, when that takes long."""
        saves = self._list_saves()
        is_alone = len(saves) == 1 and len(slice_ranks(self.marks)) > 1
        return saves[0] if is_alone and saves[0].share >= _MIN_LOST else None

    @cached_property
    def _of_all(self) -> Phases | None:
        return measure_phases(self.marks, self.ranks)

    def _list_saves(self) -> list[Saves]:
        found = list(_measure_saves(self.marks))
        return found if slice_ranks(self.marks).keys() >= self.ranks else []


def _measure_saves(marks: Marks) -> Iterable[Saves]:
    for rank, rows in slice_ranks(marks).items():
        begin, end = marks.begin_ns[rows], marks.end_ns[rows]
        is_save = (marks.kind[rows] == CHECKPOINT) & (end > 0) & (begin > 0)
        took_ns = (end - begin)[is_save]
        if len(took_ns) < _MIN_SAVES:
            continue
        span_ns = int(end.max() - begin[begin > 0].min())
        yield Saves(
            rank,
            len(took_ns),
            float(np.median(took_ns)) / _NS_PER_MS,
            0.0,
            float(took_ns.sum()) / max(1, span_ns),
        )
