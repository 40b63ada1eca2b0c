"""Finds ranks that make their peers wait in step after step, while the job runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from whystuck.collect.processes.cpu import CpuTracker
from whystuck.collect.processes.garbage import GarbageTracker
from whystuck.evidence.finding import Finding, Report, Severity
from whystuck.launch.background import describe_fault
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.processes.rank_table import RankTable
from whystuck.safe_text.escaping import show_line

# A look at 4 ranks takes 20 ms of CPU, one at 8 full op logs half a second.
_EVERY_S = 5.0
_COST_SHARE = 0.004
# The first steps of a job tell nothing.
_START_S = 20.0
# Who is late for less than this share of the time is in the report of the end alone.
_MIN_LOST_SHARE = 0.05
_MAX_ALARMS = 4
_KINDS = ("ops", "marks")

# The codes of findings about the pace of ranks.
_PACE = "S3"

# What a finding is about: its code, and the ranks.
_Subject = tuple[str, tuple[int, ...]]


@dataclass
class SlowWatch:
    """Looks at the op logs of the ranks of this node, and reports who is late throughout.

    Two looks one after the other must name the same ranks. Groups that have members on other
    nodes are not judged here.
    """

    keeper: IncidentKeeper
    table: RankTable
    note: Callable[[str], None]
    cpu: CpuTracker
    garbage: GarbageTracker
    _due_s: float = 0.0
    _has_looked: bool = False
    _last: _Subject | None = None
    _told: dict[_Subject, str] = field(default_factory=dict)

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a look; ``now_s`` is of the monotonic clock."""
        if not self._due_s:
            self._due_s = now_s + _START_S
        return now_s >= self._due_s and len(self._told) < _MAX_ALARMS

    def look(self) -> None:
        """Judge the steps so far, and report an alarm; called again and again, in any thread."""
        self._has_looked = True
        begin_s = time.thread_time()
        self._guard(self._judge)
        cost_s = time.thread_time() - begin_s
        self._due_s = max(self._due_s, time.monotonic() + max(_EVERY_S, cost_s / _COST_SHARE))

    def finish(self) -> None:
        """Report who was late in a job that ended well; say again what was told on the way.

        Where nobody was, and ranks still lost a large share of the time, that is said in one line.
        """
        if self._due_s < math.inf:
            self._guard(self._finish)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do some work; a fault of our own is told once, in a file, and ends the looks."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a healthy job does not hear of it
            self.note(describe_fault(error))
            self._due_s = math.inf

    def _finish(self) -> None:
        report = self._read()
        found = _find_alarm(report)
        if found is not None and _name(found) not in self._told:
            self._tell(found)
        elif self._told:
            for text in self._told.values():
                self.keeper.say(f"whystuck: told while the job ran: {show_line(text)}\n")
        elif self._has_looked and report is not None and report.findings:
            # Of a job of some seconds, its start is a large share.
            first = report.findings[0]
            if _is_worth_a_line(first):
                self.keeper.say(f"whystuck: {show_line(f'{first.summary} ({first.code})')}\n")

    def _judge(self) -> None:
        found = _find_alarm(self._read())
        if found is not None and found.measures["lost_share"] < _MIN_LOST_SHARE:
            found = None
        subject = _name(found) if found else None
        is_again, self._last = subject is not None and subject == self._last, subject
        if found is not None and is_again and subject not in self._told:
            self._tell(found)

    def _read(self) -> Report | None:
        """Return what is known of the pace of the ranks, None when nothing is."""
        from whystuck.pipeline import judge_pace

        processes = self.table.processes()
        paths = [self.table.file_of(one, kind) for one in processes for kind in _KINDS]
        present = [path for path in paths if path.exists()]
        if len(processes) < 2 or not present:  # noqa: PLR2004 - nobody to compare
            return None
        pids = {one.rank: one.pid for one in processes}
        cpu = {rank: one for rank, pid in pids.items() if (one := self.cpu.find(pid))}
        garbage = {rank: seen for rank, pid in pids.items() if (seen := self.garbage.find(pid))}
        return judge_pace(present, pids, self.table.node, cpu, garbage)

    def _tell(self, found: Finding) -> None:
        try:
            text = self.keeper.open_slow()
        except OSError:
            text = None
        if text is None:  # the disk is full, or gone: what the job folder shows is told
            text = f"{found.summary} ({found.code})"
            self.keeper.say(f"whystuck: {show_line(text)}\n")
        if text:
            self._told[_name(found)] = text


def _find_alarm(report: Report | None) -> Finding | None:
    """Return what is wrong with the pace of ranks, None when nothing is."""
    first = report.findings[0] if report is not None and report.findings else None
    if first is None or first.severity is Severity.NOTE or "lost_share" not in first.measures:
        return None
    return first


def _is_worth_a_line(found: Finding) -> bool:
    """Return whether a finding tells of the pace, and not only that stages of a pipeline wait."""
    return found.code.startswith(_PACE) and found.details.get("caused_by_rank") != {}


def _name(found: Finding) -> _Subject:
    return found.code, tuple(found.culprits.ranks)
