"""A job with checks, restarts and codes of its own: one round after the other.

All of it runs in the process that the user started, while no command runs. Signals that end it are
blocked, so that one that comes before the first round or between two is seen, and ends the job.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from whystuck.evidence.errors import StartError
from whystuck.evidence.fault_events import FaultKind
from whystuck.launch.background import say
from whystuck.launch.caller import Caller
from whystuck.launch.check_node import NodeCheck
from whystuck.launch.front import Front
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.options import BootCheck, RunOptions, UnfitError, check_command
from whystuck.launch.restarts.agreement import SILENT, Agreement, StartDecision
from whystuck.launch.restarts.between import (
    BetweenRounds,
    block_stop,
    find_stop,
    is_told_to_stop,
    wait_for_stop,
)
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.exclude import SLURM_FILE
from whystuck.launch.restarts.exit_codes import ExitCodes
from whystuck.launch.restarts.leftovers import end_leftovers
from whystuck.launch.restarts.policy import STOPPED, RestartPolicy
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.secrets import hide_arguments

# A port that the last round had, or its memory, may be free only a moment after its end.
_WAIT_S = 1.0


@dataclass
class Rounds:
    """The rounds of one job on this node.

    Attributes:
        options: What the user asked for.
        node: The name of this node.
        policy: Decides on restarts.
        codes: The exit codes of root causes.
        check: Checks the node before and after each round; None where that was not asked for.
        agreement: What makes the nodes of the job decide alike; None where they do not meet.
    """

    options: RunOptions
    node: str
    policy: RestartPolicy
    codes: ExitCodes = field(default_factory=ExitCodes)
    check: NodeCheck | None = None
    agreement: Agreement | None = None
    _last: RoundEnd | None = None

    def run(self) -> int:
        """Run the job until it is over; return the exit code.

        Raises:
            UnfitError: A check says that this node is not fit.
            StartError: So many others are not that the job cannot start.
        """
        check_command(self.options.command[0])
        caller = Caller.look()
        block_stop()
        if self.agreement is None:
            return self._run(caller)
        try:
            if problem := self.agreement.open(_say_wait, is_told_to_stop):
                say(f"whystuck: this node decides without the others: {show_line(problem)}\n")
            return self._run(caller)
        finally:
            self.agreement.leave(self._last)

    def _run(self, caller: Caller) -> int:
        while True:
            boot, decision = self._check()
            if is_told_to_stop():
                return self._stop()
            if decision.why_not:
                return self._refuse(boot, decision)
            self._last = end = self._run_round(caller, boot)
            if end.code == 0:
                return 0
            if not self.policy.max_restarts:
                return self.codes.choose(end)
            self._last = end = self._agree(end)
            if reason := self.policy.why_not(end):
                return self._end(end, reason)
            self._announce(end)
            self._end_leftovers(end)
            if wait_for_stop(_WAIT_S):
                return self._end(replace_fields(end, was_asked=True), STOPPED)
            _reap()

    def _check(self) -> tuple[BootCheck, StartDecision]:
        """Check this node, tell the others whether it is fit, and hear whether they are."""
        if self.check is None:
            return BootCheck(), StartDecision()
        try:
            boot = self.check.check_before()
        except UnfitError as error:
            self._agree_on_start(error.cause)
            raise
        decision = self._agree_on_start(None)
        for note in decision.notes:
            say(f"whystuck: {show_line(note[:1].lower() + note[1:])}\n")
        return replace(boot, notes=(*boot.notes, *decision.notes)), decision

    def _agree_on_start(self, cause: RootCause | None) -> StartDecision:
        if self.agreement is None:
            return StartDecision()
        decision = self.agreement.agree_on_start(cause, is_told_to_stop)
        if self.check is not None:
            self.check.meeting = self.agreement.meeting
        return decision

    def _refuse(self, boot: BootCheck, decision: StartDecision) -> int:
        """End a job for which too few nodes are left."""
        last = self._last
        if last is not None:
            last = replace_fields(last, cause=decision.cause or last.cause, node=decision.node)
            return self._end(last, decision.why_not)
        text = f"the job was not started: {decision.why_not}"
        if self.check is not None:
            note = f"{text[:1].upper()}{text[1:]}"
            self.check.write_not_started(boot, StartError.exit_code, note)
        hint = "this node is fit; spare nodes are those of `torchrun --nnodes MIN:MAX`"
        raise StartError(text, hint=hint)

    def _stop(self) -> int:
        """End a job that was told to, while its command did not run."""
        if self._last is not None:
            return self._end(replace_fields(self._last, was_asked=True), STOPPED)
        number = find_stop()
        self._last = RoundEnd(128 + number, was_asked=True)
        is_checked = self.check is not None
        when = (
            "during the checks of this node" if is_checked else "while other nodes were waited for"
        )
        text = f"The job was not started: {signal.Signals(number).name} came {when}"

        def write(log: FaultLog) -> None:
            log.start_round(hide_arguments(self.options.command), BootCheck())
            log.note(text)
            log.end_round(128 + number)

        self._between.write_new_round(write)
        say(f"whystuck: {text[:1].lower() + text[1:]}\n")
        return 128 + number

    def _run_round(self, caller: Caller, boot: BootCheck) -> RoundEnd:
        front = Front(
            replace(self.options, boot_check=boot, restarts=self.policy.restarts),
            caller,
            may_restart=self.policy.may_restart,
            close_ours=self.agreement.close if self.agreement else lambda: None,
        )
        if self.agreement is not None:
            self.agreement.greet()
        front.run()
        end = front.ending
        unfit = self._check_after(end)
        # What was just seen broken says more than what follows from it in the job.
        if unfit is not None:
            others = "" if unfit.is_about(self.node) else ", ".join(unfit.nodes)
            end = replace_fields(end, cause=unfit, node=others)
        if end.cause is not None and end.cause.is_hardware and end.cause.is_about(self.node):
            self._exclude(end)
        return end

    def _check_after(self, end: RoundEnd) -> RootCause | None:
        """Check the node again after a failure, with those that are there."""
        if self.check is None or end.code == 0 or end.is_asked_for:
            return None
        if self.agreement is not None:
            is_long = self.policy.max_restarts > 0
            wait_s = self.agreement.end_wait_s if is_long else self.check.policy.nodes.meet_s
            problem = self.agreement.gather_after(end, wait_s, is_told_to_stop)
            self.check.meeting = self.agreement.meeting
            if problem:
                self._note(end, f"{SILENT}: {problem}")
        return self.check.check_after(end)

    def _agree(self, end: RoundEnd) -> RoundEnd:
        """Tell other nodes how the round ended here, and judge it as they do."""
        if self.agreement is None:
            return end
        joined, notes = self.agreement.agree(end, is_told_to_stop)
        if self.check is not None:
            self.check.meeting = self.agreement.meeting
        for note in notes:
            self._note(end, note)
        return joined

    def _exclude(self, end: RoundEnd) -> None:
        assert end.cause is not None  # noqa: S101 - the caller has looked
        folder = self._between.exclude(end.cause)
        if folder is not None:
            say(f"whystuck: `{show_line(str(folder / SLURM_FILE))}` keeps this node out\n")

    def _end_leftovers(self, end: RoundEnd) -> None:
        if count := end_leftovers(end.left):
            text = f"Ranks that had outlived their launcher were ended: {count}"
            self._tell(end, text, {"ranks": count}, FaultKind.NOTE)

    def _note(self, end: RoundEnd, text: str) -> None:
        self._tell(end, text, {}, FaultKind.NOTE)

    def _announce(self, end: RoundEnd) -> None:
        number, most = self.policy.restarts, self.policy.max_restarts
        why = end.cause.describe() if end.cause else f"it ended with code {end.code}"
        why = f"{end.node}: {why}" if end.node else why
        details = {"restart": number, "reason": why}
        self._tell(end, f"Restart {number} of {most}: {why}", details)

    def _end(self, end: RoundEnd, reason: str) -> int:
        self._last = end
        self._tell(end, f"Not started again: {reason}", {"reason": reason})
        return self.codes.choose(end)

    def _tell(
        self,
        end: RoundEnd,
        text: str,
        details: dict[str, object],
        kind: FaultKind = FaultKind.RESTART,
    ) -> None:
        def write(log: FaultLog) -> None:
            log.add(kind, text, details=details)

        self._between.write(end, write)
        say(f"whystuck: {show_line(text[:1].lower() + text[1:])}\n")

    @property
    def _between(self) -> BetweenRounds:
        return BetweenRounds(self.options.evidence, self.node)


def _say_wait(where: str) -> None:
    say(f"whystuck: waiting for the first node at {show_line(where)}\n")


def _reap() -> None:
    """Take note of the ends of what the last round has started."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
