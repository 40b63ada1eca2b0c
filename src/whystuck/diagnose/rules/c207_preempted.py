"""C207 preempted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.algorithms.failures import name_signal
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.live import ExitRecord


class Preempted(Rule):
    """Somebody outside ended the whole job with a signal; no rank is to blame.

    ## What it means

    A batch system took the node back or enforced a time limit, or a person ended the job. What
    ranks report after the signal belongs to the end.

    ## How it is found

    `whystuck run` got the signal and passed it on, before any rank had failed.

    ## False alarms

    A job that was ended because somebody saw that it hung: when whystuck saw the stall too, the
    stall is reported.

    ## What to do

    Nothing in the job is wrong. Save checkpoints often enough, and ask the batch system why.
    """

    code = "C207"
    name = "preempted"
    needs = ()
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "ask the batch system: `sacct -j JOB --format=State,ExitCode,Timelimit,Elapsed`, or "
            "`kubectl describe pod`"
        ),
        "save a checkpoint on SIGTERM, or often enough that little is lost",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when a signal came to the whole job and nothing failed before."""
        del policy
        number = scene.evidence.incident.outside_signal
        if not number or scene.root_exceptions or scene.crash_signals:
            return
        name = name_signal(ExitRecord(-1, 0, signal=number))
        yield self.make_finding(
            f"the job was ended from outside by {name}; no rank failed before",
            Confidence.CERTAIN,
            Blame(victims=scene.victims),
            because=[Citation(f"the supervisor got {name}", "incident.json")],
            details={"signal": name},
        )
