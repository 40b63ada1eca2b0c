"""H125 timeout-too-short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.suspects.short_limit import ShortLimit
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class TimeoutTooShort(Rule):
    """Ranks gave up on a collective that was only slow, because its time limit is too short.

    ## What it means

    Nothing is stuck. One rank has legal work to do before the op, such as an evaluation, a
    checkpoint or a first batch, and the limit of the group ends the wait of the others before.

    ## How it is found

    An op ended by its limit, and one of these holds: all members issued it in the end, the last
    one after the others had given up (`certain`); the same call took more than half of the limit
    before (`likely`); or the limit is short and the ranks that were waited for were at work
    (`likely`; `possible` when the limit is more than ten times the longest that the call took
    before, so that they may as well compute for ever). `measures` has `limit_s` and, where known,
    `longest_s` (the longest that this call took before) and `late_s` (by how much the last rank
    missed the limit).

    In texts that people paste: an operation whose times a program prints takes longer each time,
    up to the limit, and the next one would be beyond it. It is `likely` where that one began and
    did not end, and else `possible`. Or the rank that was waited for says, below those that gave
    up, how long what it did took, and that is longer than the limit (`likely`).

    ## False alarms

    A rank that computes for ever looks like one that works, when the limit is short.

    ## What to do

    Raise the limit of this group to several times the longest legal wait.
    """

    code = codes.TIMEOUT_TOO_SHORT
    name = "timeout-too-short"
    loss_effect = LossEffect.PARTED
    needs = ("exceptions", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "raise the limit: `init_process_group(timeout=timedelta(minutes=30))`, or `timeout=` "
            "of the group that these ops run on"
        ),
        "or let all ranks do the long work, or make it shorter",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when a limit ended an op that was only slow."""
        found = scene.suspects.short_limit
        if found is None or scene.suspects.explained:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))
            return
        wait = found.wait
        op, site = scene.ops.name_wait(wait), scene.ops.get_wait_site(wait)
        place = f" in {describe_place(site[0])}" if site else ""
        details: dict[str, Any] = {
            "group": wait.group.label,
            "sequence": wait.seq,
            "op": op,
            "late_ranks": list(found.late),
        }
        measures = {"limit_s": found.limit_s}
        if found.longest_s is not None:
            measures["longest_s"] = round(found.longest_s, 3)
        if found.late_s is not None and found.late_s > 0:
            measures["late_s"] = round(found.late_s, 3)
        where = make_places(wait.rank, site, policy.places_per_rank)
        for rank in found.late[:1]:
            where += make_places(rank, scene.exits.find_last_frames(rank), 1)
        yield self.make_finding(
            f"the limit of {found.limit_s:g} s {_judge(found)} too short for the {op}{place}: "
            f"{_tell_why(found)}",
            found.confidence,
            Blame(
                groups=[wait.group.label], victims=sorted(scene.exceptions.timed_out), where=where
            ),
            because=[
                scene.ops.cite_wait(
                    wait, f"rank {wait.rank} gave up on {op} after {found.limit_s:g} s"
                )
            ],
            details=details,
            measures=measures,
        )


def _judge(found: ShortLimit) -> str:
    return "may be" if found.confidence is Confidence.POSSIBLE else "is"


def _tell_why(found: ShortLimit) -> str:
    who = name_ranks(found.late)
    if found.late_s is not None and found.late_s > 0:
        return f"{who} came {found.late_s:.1f} s after the others had given up"
    if found.longest_s is not None and found.longest_s >= found.limit_s / 2:
        return f"this call took up to {found.longest_s:.1f} s before"
    text = f"{who} {'was' if len(found.late) == 1 else 'were'} still at work"
    if found.confidence is Confidence.POSSIBLE:
        text += f", where this call took {found.longest_s:.1f} s at most before; or for ever"
    return text
