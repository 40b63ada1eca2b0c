"""One incident: its folder, what was known when it was opened, and what was said of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.scene import Scene
from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.records import IncidentRecord

_DOUBT_FACTOR = 5.0
_NOT_STUCK = frozenset({Verdict.WAITING, Verdict.HEALTHY})
_UNDECIDED = _NOT_STUCK | {Verdict.INCONCLUSIVE}
# States of ops in reports.
_PENDING = frozenset({"pending", "started"})


@dataclass
class Incident:
    """One incident: its folder, where its files are written, what was known, and what was said."""

    folder: Path
    work: Path
    record: IncidentRecord
    scene: Scene
    report: Report | None = None
    stalled_at_open_s: float = 0.0
    # Of the clock that nobody sets, unlike that of the record.
    opened_s: float = field(default_factory=time.monotonic)

    @property
    def is_decided(self) -> bool:
        """Whether the report names a cause: a later failure follows from it."""
        return self.report is not None and self.report.verdict not in _UNDECIDED

    def is_surely_stuck(self, stalled_s: float, limit_s: float) -> bool:
        """Tell whether a job may be ended, when that was asked for.

        One that is only waiting never is; one of which we cannot tell what it does gets time, and
        is stuck only when an op is pending: a job without one may compute, or replay CUDA graphs.
        """
        verdict = self.report.verdict if self.report else Verdict.INCONCLUSIVE
        if verdict is Verdict.INCONCLUSIVE:
            return stalled_s > _DOUBT_FACTOR * limit_s and self._has_pending_op()
        return verdict not in _NOT_STUCK

    def _has_pending_op(self) -> bool:
        """Whether some rank has issued an op that is not over."""
        shown = self.report.timeline if self.report else []
        parts = [part for item in shown for op in item.ops for part in op.classes]
        return any(part.state in _PENDING for part in parts)
