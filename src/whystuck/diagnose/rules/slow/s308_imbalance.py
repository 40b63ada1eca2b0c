"""S308 imbalance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.shared_wait import SharedWait
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity, Verdict
from whystuck.evidence.ranks import name_ranks

_MAX_NAMED = 4


class Imbalance(Rule):
    """Ranks wait for each other for a third of the time or more, and no rank alone is the reason.

    ## What it means

    Ranks have different amounts of work from step to step: samples of different lengths, stages
    of different depth, inputs that run out on some ranks, or work that one rank does alone now
    and then, such as an evaluation or a checkpoint. No rank is faulty, and none is named.

    ## How it is found

    From the op logs: a rank waits in a synchronous op until the last rank has come to it. The rank
    that waits most does so for a third of the time or more, longer than it waits for data to be
    moved, and no rank comes last in most steps (that is S301). Of asynchronous ops, the arrivals
    tell how long ranks wait. Of the `measures`, `wait_share` is the share of its time in which
    the rank that waits most is in ops, `for_peers_share` the part of it before the last rank
    came. `details.caused_by_rank` is which share of the waits each rank caused where ranks can be
    compared. Two ranks that are late in each step hide each other, and are told of here. A job that
    took less than a second, or less than a minute with fewer than 20 ops of a kind, is too short.

    Of logs, ranks print for each step how much they had to do, such as tokens, and how long that
    took: the times follow the work, and no rank takes longer than others for the same. They may
    stand in a table (`8120 / 402` below `r0: tok / ms`, or a cell for each rank below one head such
    as `step  rank: tokens/ms`), or in one line for each step.

    ## False alarms

    Work that must be done by one rank alone, in a short job: an evaluation is a large share of it.

    ## What to do

    Give ranks equal work in each step, or let them wait less often.
    """

    code = codes.IMBALANCE
    name = "imbalance"
    quiet_verdict = Verdict.SLOW
    severity = Severity.NOTE
    needs = ("ops", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "give ranks equal work: batches of equal length, as many on each, stages of equal depth",
        "spread what one rank does alone (saving, logging, evaluation) over ranks, or do it beside",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when ranks wait for each other for long."""
        del policy
        wait = scene.pace.shared_wait
        if wait is None or not wait.is_for_peers:
            # Of a job that whystuck watches, how long ranks wait is known.
            if scene.evidence.incident.kind == "files":
                yield from (tell_case(self, case) for case in scene.story.of(self.code))
            return
        yield self.make_finding(
            f"ranks wait for each other up to {wait.for_peers:.0%} of the time; {_name(wait)}",
            Confidence.LIKELY,
            Blame(),
            because=list(_cite(wait)),
            details={
                "caused_by_rank": {str(rank): round(wait.caused[rank], 3) for rank in wait.caused}
            },
            measures={
                "wait_share": round(wait.share, 4),
                "for_peers_share": round(wait.for_peers, 4),
            },
        )


def _name(wait: SharedWait) -> str:
    """Say what is known of who is late."""
    if not wait.caused:
        return "the op logs do not tell who is late"
    ranks = wait.main_causes
    if not ranks:
        return "who comes last changes"
    share = sum(wait.caused[rank] for rank in ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]} causes {share:.0%} of that, but not step after step"
    return f"{name_ranks(ranks)} cause {share:.0%} of that, by turns"


def _cite(wait: SharedWait) -> Iterator[Citation]:
    yield Citation(
        f"rank {wait.rank} is in ops {wait.share:.0%} of the time, {wait.for_peers:.0%} before the "
        "last rank comes"
    )
    for rank, share in list(wait.caused.items())[:_MAX_NAMED]:
        times = wait.times[rank]
        yield Citation(
            f"rank {rank} comes last {times} of {wait.rounds} times: {share:.0%} of the waits"
        )
