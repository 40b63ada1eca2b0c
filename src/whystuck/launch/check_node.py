"""``whystuck run --check``: checks of this node before the command starts, and after it failed.

They run in the process that the user started, before anything else is and after all has ended.
What may hang is done by processes with a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from whystuck.check.checks import choose_checks, choose_disks, make_context
from whystuck.check.fault_lines import list_boot_lines, list_changes, list_later_lines
from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.policy import CheckPolicy
from whystuck.check.report import list_blocking, make_report
from whystuck.check.runner import run_checks
from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.finding import Finding, Report, Severity
from whystuck.evidence.nodes.checks import CheckResult, ChecksRecord
from whystuck.launch.background import say
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.options import BootCheck, UnfitError
from whystuck.launch.restarts.between import BetweenRounds, is_told_to_stop
from whystuck.launch.restarts.ending import RootCause, RoundEnd, make_root_cause
from whystuck.launch.restarts.exclude import SLURM_FILE
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.secrets import hide_arguments


@dataclass
class NodeCheck:
    """The checks of one node around one round of a job.

    Attributes:
        policy: The thresholds.
        evidence: The evidence folder.
        node: The name of this node.
        command: The command of the job.
        meeting: Where this node meets the others of the job; None where it is looked at alone.
    """

    policy: CheckPolicy
    evidence: Path
    node: str
    command: Sequence[str]
    meeting: MeetingPlace | None = None
    _before: list[CheckResult] = field(default_factory=list)

    def check_before(self) -> BootCheck:
        """Check the node, and return what ``fault.log`` is to tell.

        A signal that comes meanwhile ends that, where signals wait: between two rounds.

        Raises:
            UnfitError: Something is wrong that the policy calls blocking.
        """
        results, report, took_s = self._run(is_told_to_stop)
        if is_told_to_stop():
            return BootCheck()
        self._before = results
        lines = tuple(list_boot_lines(results, report, took_s))
        _say_findings(report)
        blocking = list_blocking(report, self.policy.blocking, self.node)
        boot = BootCheck(lines, _encode(self.node, results))
        if blocking:
            self.write_not_started(boot, UnfitError.exit_code)
            cause = make_root_cause(blocking[0])
            lists = self._between.exclude(cause) if cause.is_about(self.node) else None
            raise _make_error(blocking, cause, self.evidence, lists)
        return boot

    def check_after(self, end: RoundEnd) -> RootCause | None:
        """Check the node again when the job has failed, and tell what is worse than before.

        A signal that comes meanwhile ends that.

        Returns:
            What is wrong with the node that the policy calls blocking.
        """
        if end.code == 0 or end.is_asked_for or is_told_to_stop():
            return None
        results, report, took_s = self._run(is_told_to_stop)
        if is_told_to_stop():
            return None
        lines = list_later_lines(results, self._before, report, took_s)
        self._between.write(end, lambda log: log.add(FaultKind.CHECK, *lines))
        for change in list_changes(results, self._before):
            say(f"whystuck: after the failure: {show_line(change)}\n")
        blocking = list_blocking(report, self.policy.blocking)
        return make_root_cause(blocking[0]) if blocking else None

    @property
    def _between(self) -> BetweenRounds:
        return BetweenRounds(self.evidence, self.node)

    def _run(self, is_over: Callable[[], bool]) -> tuple[list[CheckResult], Report, float]:
        begun_s = time.monotonic()
        context = make_context(self.policy, choose_disks(), meeting=self.meeting)
        checks = choose_checks(self.policy.checks, is_together=self.meeting is not None)
        results = run_checks(checks, context, is_over=is_over)
        took_s = time.monotonic() - begun_s
        return results, make_report(results, took_s), took_s

    def write_not_started(self, boot: BootCheck, code: int, *notes: str) -> None:
        """Write the section of a round whose command was not started."""

        def write(log: FaultLog) -> None:
            log.start_round(hide_arguments(self.command), boot)
            log.note(*notes)
            log.end_round(code)

        self._between.write_new_round(write)


def _encode(node: str, results: list[CheckResult]) -> bytes:
    record = ChecksRecord(node=node, taken_ns=time.time_ns(), results=results)
    return msgspec.json.format(msgspec.json.encode(record))


def _say_findings(report: Report) -> None:
    for finding in report.findings:
        if finding.severity is not Severity.NOTE:
            text = f"{finding.severity.value}[{finding.code}]: {finding.summary}"
            say(f"whystuck: {show_line(text)}\n")


def _make_error(
    blocking: Sequence[Finding], cause: RootCause, evidence: Path, lists: Path | None
) -> UnfitError:
    first = blocking[0]
    more = f", and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    advice = first.remedies[0] if first.remedies else f"whystuck explain {first.code}"
    where = f", `{lists}/{SLURM_FILE}` keeps this node out" if lists else ""
    return UnfitError(
        f"this node is not fit for the job: {first.code} {first.name}: {first.summary}{more}; "
        f"the job was not started, `{evidence}/fault.log` has all checks{where}",
        hint=advice,
        cause=cause,
    )
