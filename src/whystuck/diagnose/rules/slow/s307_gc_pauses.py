"""S307 gc-pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.evidence.finding import Finding, Severity


class GcPauses(Rule):
    """Python collects garbage for long, on one rank at a time, while the others wait for it.

    ## What it means

    A process with millions of objects takes a second or more for a full collection, and each rank
    does so at a step of its own: of many ranks, one is nearly always late.

    ## How it is found

    From what the collector prints (`gc.set_debug(gc.DEBUG_STATS)`) and what programs log of it: two
    pauses of 0.1 s or more. `details.pauses` is how many there are, `details.longest_s` the
    longest of them.

    ## False alarms

    Pauses at the same step on all ranks, or before the first step, cost little.

    ## What to do

    Let all ranks collect at the same steps, and leave out what lives for ever.
    """

    code = codes.GC_PAUSES
    name = "gc-pauses"
    severity = Severity.WARNING
    needs = ("logs",)
    remedies: ClassVar[tuple[str, ...]] = (
        "gc.disable(), and gc.collect() every few hundred steps, at the same steps on all ranks",
        "gc.freeze()   # after the start: what is there then is not looked at again",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when the logs tell of long pauses."""
        del policy
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
