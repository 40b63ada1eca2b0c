"""S305 serial-checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity, Verdict


class SerialCheckpoint(Rule):
    """One rank alone saves checkpoints, and that takes a twentieth of the time or more.

    ## What it means

    The other ranks wait while one writes. The rank is not slow: it has work that others do not
    have.

    ## How it is found

    From marks of `torch.save` and `torch.distributed.checkpoint` (`whystuck run --marks`): one rank
    has two or more of them, the others none. `measures.share` is the share of its time.

    Of logs, one rank says how long it saves, and others that they wait as long; or the steps behind
    a line that says that a checkpoint is saved, and no others, take far longer, and a sentence says
    that one rank alone saves (H118 without that).

    ## False alarms

    Saves that run beside the training, in a thread of their own.

    ## What to do

    Save in parallel, or beside the training.
    """

    code = codes.SERIAL_CHECKPOINT
    name = "serial-checkpoint"
    severity = Severity.NOTE
    quiet_verdict = Verdict.SLOW
    needs = ("marks", "logs")
    explains = (codes.IMBALANCE,)
    explains_from = Severity.NOTE
    remedies: ClassVar[tuple[str, ...]] = (
        "torch.distributed.checkpoint.async_save(...)   # the training goes on while it writes",
        "torch.distributed.checkpoint.save(...)   # each rank writes its own part",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when one rank alone saves for long."""
        del policy
        found = scene.pace.step_marks.serial_saves
        if found is None or not scene.pace.is_known:
            # Of a job that whystuck watches, marks tell how long saves take.
            if scene.evidence.incident.kind == "files":
                yield from (tell_case(self, case) for case in scene.story.of(self.code))
            return
        yield self.make_finding(
            f"rank {found.rank} alone saves checkpoints: {found.count} of them take "
            f"{found.took_ms:.0f} ms each, {found.share:.0%} of the time",
            Confidence.LIKELY,
            Blame(),
            because=[
                Citation(
                    f"rank {found.rank} has {found.count} marks of saves, no other rank has any"
                )
            ],
            details={"rank": found.rank},
            measures={"share": round(found.share, 4), "save_ms": round(found.took_ms, 3)},
        )
