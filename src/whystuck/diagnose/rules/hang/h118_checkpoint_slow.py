"""H118 checkpoint-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.rule_kinds import SuspectRule
from whystuck.evidence.finding import Severity, Verdict


class CheckpointSlow(SuspectRule):
    """A rank writes a checkpoint while the others wait: not stuck.

    ## What it means

    Saving takes long because one rank writes all of it, or the storage is slow.

    ## How it is found

    The main thread of a suspect is inside a save, and its written bytes or its frames move
    between samples.

    ## False alarms

    A function that has `save` in its name and does something else.

    ## What to do

    Save from all ranks (`torch.distributed.checkpoint`) or asynchronously, or write to faster
    storage.
    """

    code = codes.CHECKPOINT_SLOW
    name = "checkpoint-slow"
    loss_effect = LossEffect.ELSEWHERE
    quiet_verdict = Verdict.WAITING
    severity = Severity.NOTE
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "save from all ranks with `torch.distributed.checkpoint`, or asynchronously with "
            "`async_save`"
        ),
        "check the storage: the rate is in the measures of this finding",
    )
