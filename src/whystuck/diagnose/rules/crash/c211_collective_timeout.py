"""C211 collective-timeout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.cases.next_step import NEXT_RUN
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class CollectiveTimeout(LogRule):
    """Collectives ran into their time limit, and the evidence does not show who was missing.

    ## What it means

    Some ranks waited in a collective until its time limit. They are victims; the cause is a
    rank that did not come.

    ## How it is found

    Errors of time limits are there, and neither flight-recorder dumps nor stacks show the
    cause. When another cause is found, or a rank that these ranks waited for saves or sets up and
    goes on, this finding is dropped. The ranks of `Watchdog caught collective operation timeout`
    waited: they are victims. A rank is named only where others name it (`Ranks 3 failed to pass
    monitoredBarrier`) or its own watchdog says that it hangs, in a text that tells of other ranks
    too; who sends `dump signal ... from rank 6` only waited first. `details` holds the op, its
    number in its group, its size, who waited and of whom there is no word (`silent`); a number
    means nothing in another group.

    ## False alarms

    A legal op that takes longer than the limit.

    ## What to do

    Run with `whystuck run`, which takes stacks and flight-recorder dumps before the limit ends.
    """

    code = codes.COLLECTIVE_TIMEOUT
    name = "collective-timeout"
    end_class = "communication-timeout"
    fallback_level = 2
    remedies: ClassVar[tuple[str, ...]] = (
        "run the job with `whystuck run -- COMMAND`: it keeps stacks and flight-recorder dumps",
        NEXT_RUN,
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002 - one face
        """Yield a finding for time limits with no known cause."""
        if not scene.exceptions.timed_out:
            return
        ranks = sorted(rank for rank in scene.exceptions.timed_out if rank >= 0)
        who = name_ranks(ranks) if ranks else "ranks"
        yield self.make_finding(
            f"{who} waited in a collective until its time limit; who was missing is not known",
            Confidence.LIKELY,
            Blame(victims=ranks),
            because=[
                Citation(
                    scene.exceptions.by_rank[rank].message.partition("\n")[0][:160],
                    scene.exceptions.by_rank[rank].artifact,
                )
                for rank in sorted(scene.exceptions.timed_out)[:4]
            ],
            details={"waiting": ranks},
        )
