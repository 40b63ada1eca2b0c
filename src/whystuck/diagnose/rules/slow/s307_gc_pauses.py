"""S307 gc-pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.garbage_facts import Pausing
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.ranks import name_ranks

_MAX_CITED = 4


class GcPauses(Rule):
    """Python collects garbage for long, on one rank at a time, while the others wait for it.

    ## What it means

    A process with millions of objects takes a second or more for a full collection, and each rank
    does so at a step of its own: of many ranks, one is nearly always late.

    ## How it is found

    Five times a second, the supervisor looks into the memory of each rank whether its collector
    runs, unless a thread of it waits in the kernel. The share of looks that meet a full collection
    is the share of the time it takes; with the number of full collections, which the interpreter
    counts, that is the mean length of one. Ranks are told of from a twentieth of their time and
    20 ms a collection on, where others wait for them (S301, S308) and that is half of it.
    They are named where they are no more than half of the ranks: where most collect, who is late
    changes. `measures.lost_share` is the share of the rank that collects longest,
    `measures.pause_s` the mean length of its collections.

    Of logs, what the collector prints (`gc.set_debug(gc.DEBUG_STATS)`) and what programs log of it:
    two pauses of 0.1 s or more. `details.pauses` is how many there are, `details.longest_s` the
    longest of them.

    ## False alarms

    Pauses at the same step on all ranks, or before the first step, cost little.

    ## What to do

    Let all ranks collect at the same steps, and leave out what lives for ever.
    """

    code = codes.GC_PAUSES
    name = "gc-pauses"
    severity = Severity.WARNING
    needs = ("garbage", "logs")
    explains = (codes.SLOW_RANK, codes.SLOW_NODE, codes.IMBALANCE, codes.WHOLE_JOB_SLOWER)
    remedies: ClassVar[tuple[str, ...]] = (
        "gc.disable(), and gc.collect() every few hundred steps, at the same steps on all ranks",
        "gc.freeze()   # after the start: what is there then is not looked at again",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when ranks, or logs, tell of long pauses."""
        del policy
        found = scene.pace.pausing
        if found:
            yield self._make(scene, found)
        else:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))

    def _make(self, scene: Scene, found: tuple[Pausing, ...]) -> Finding:
        worst, ranks = found[0], sorted(one.rank for one in found)
        named = ranks if 2 * len(ranks) <= len(scene.evidence.garbage) else []
        return self.make_finding(
            f"full collections of garbage stop {name_ranks(ranks)}: up to {worst.share:.0%} of the "
            f"time, {worst.pause_s:.2g} s at a time, while the others wait",
            Confidence.LIKELY,
            Blame(ranks=named),
            because=[
                Citation(
                    f"rank {one.rank} was in a full collection {one.share:.0%} of the time, "
                    f"{one.count} times for {one.pause_s:.2g} s",
                    one.artifact,
                )
                for one in found[:_MAX_CITED]
            ],
            details={"pausing_ranks": ranks},
            measures={"lost_share": round(worst.share, 4), "pause_s": round(worst.pause_s, 4)},
        )
