"""C207 preempted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_signal
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.live import ExitRecord

# A shell reports the signal that ended a command as a code this much higher.
_SHELL_OFFSET = 128


class Preempted(LogRule):
    """Somebody outside ended the whole job with a signal; no rank is to blame.

    ## What it means

    A batch system took the node back or enforced a time limit, or a person ended the job. What
    ranks report after the signal belongs to the end.

    ## How it is found

    `whystuck run` got the signal and passed it on, or the launcher itself ended by one, or several
    ranks got SIGTERM together, and no rank had failed before. From logs, Slurm says why it ended a
    job (`DUE TO TIME LIMIT`, `DUE TO PREEMPTION`), Kubernetes says so in its events, and torchrun
    prints the signal it got. What ranks print after that line (NVLink errors, lost peers, errors
    of a driver that shuts down) belongs to the end. `details.kind` is `time-limit`, `preemption`,
    `cancelled`, `eviction`, `interrupt` (Ctrl-C) or `signal`.

    ## False alarms

    A job that was ended because somebody saw that it hung: when whystuck saw the stall too, the
    stall is reported. A job that its user interrupts while it moves is fine: this is a note then.
    Where no rank had made progress for a while, the note says so, and what the ranks waited for is
    reported as `possible`.

    ## What to do

    Nothing in the job is wrong. Save checkpoints often enough, and ask the batch system why.
    """

    code = codes.PREEMPTED
    name = "preempted"
    end_class = "ended-outside"
    explains = (codes.HANG,)
    # The signal itself is known without any log.
    needs: ClassVar[tuple[str, ...]] = ()
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "ask the batch system: `sacct -j JOB --format=State,ExitCode,Timelimit,Elapsed`, or "
            "`kubectl describe pod`"
        ),
        "save a checkpoint on SIGTERM, or often enough that little is lost",
    )

    @staticmethod
    def _has_failure(scene: Scene) -> bool:
        return any(scene.exits.by_rank[rank].code for rank in scene.exits.failed_ranks)

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when a signal came to the whole job and nothing failed before."""
        del policy
        if (
            scene.exits.root_exceptions
            or scene.exits.crash_signals
            or scene.exits.killed_ranks
            or scene.exceptions.timed_out
        ):
            return
        incident = scene.evidence.incident
        if incident.killed_ns:
            return
        if incident.is_interrupt and incident.is_moving is not None:
            yield self._make_interrupt(scene)
            return
        shell_code = incident.command_exit or 0
        ended = [item for item in scene.evidence.exits if item.signal]
        if incident.outside_signal:
            number, who, sure = incident.outside_signal, "the job", Confidence.CERTAIN
        elif shell_code > _SHELL_OFFSET:
            number, who, sure = shell_code - _SHELL_OFFSET, "the launcher", Confidence.CERTAIN
        elif incident.kind == "exit" and len(ended) > 1 and not self._has_failure(scene):
            number, who, sure = ended[0].signal or 0, "the launcher", Confidence.LIKELY
        else:
            return
        name = name_signal(ExitRecord(rank=-1, signal=number))
        yield self.make_finding(
            f"{who} was ended from outside by {name}; no rank failed before",
            sure,
            Blame(victims=scene.ranks.victims),
            because=[
                *[Citation(f"{who} got {name}", "incident.json")][: sure is Confidence.CERTAIN],
                *[Citation(f"rank {one.rank} ended with the job", one.artifact) for one in ended],
            ],
            details={"signal": name},
        )

    def _make_interrupt(self, scene: Scene) -> Finding:
        """Say that the user interrupted the job, and whether it moved; nothing failed."""
        incident = scene.evidence.incident
        idle = f"; no rank had made progress for {incident.idle_s or 0.0:.0f} s"
        finding = self.make_finding(
            "the user interrupted the job (Ctrl-C)" + ("" if incident.is_moving else idle),
            Confidence.CERTAIN,
            Blame(),
            because=[Citation("`whystuck run` got SIGINT", "job.json")],
            details={"kind": "interrupt", "signal": "SIGINT"},
        )
        return replace(finding, severity=Severity.NOTE, remedies=[])
