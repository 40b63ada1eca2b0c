"""One incident: its folder, what was known when it was opened, and what was said of it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.scene import Scene
from whystuck.evidence.finding import Confidence, Report, Severity, Verdict
from whystuck.evidence.records import IncidentRecord, count_restarts
from whystuck.launch.processes.outside import copy_signal
from whystuck.safe_text.escaping import show_line

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


def note_end(record: IncidentRecord, end: IncidentRecord) -> None:
    """Put how the job ended into the record of an incident that was opened before."""
    record.command_exit = end.command_exit
    copy_signal(end, record)


def is_doubtful(report: Report) -> bool:
    """Whether a longer look may change the answer."""
    if report.verdict is Verdict.INCONCLUSIVE or not report.findings:
        return True
    first = report.findings[0]
    return first.confidence is Confidence.POSSIBLE and first.severity is not Severity.NOTE


def headline(report: Report) -> tuple[object, ...]:
    """Return what a report says first; two that say the same need not both be told."""
    if not report.findings:
        return (report.verdict,)
    first = report.findings[0]
    return (report.verdict, first.code, first.confidence, tuple(first.culprits.ranks))


def describe_end(record: IncidentRecord) -> str:
    """Return how a job ended, for one line."""
    if record.outside_signal == signal.SIGINT:
        return "the job was interrupted"
    return f"the job ended with code {record.command_exit}"


def describe_good_end(restarts: int, report: Report | None) -> str:
    """Say that a job ended well that had failed before, and why it had, as one line."""
    first = report.findings[0] if report and report.findings else None
    past = f"; before: {first.code}: {first.summary}" if first else ""
    return f"the job finished with code 0 after {count_restarts(restarts)}{show_line(past)}"
