"""H117 setup-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.rule_kinds import SuspectRule
from whystuck.evidence.finding import Severity, Verdict


class SetupSlow(SuspectRule):
    """A rank is busy before training, or runs the model alone, while others wait: not stuck.

    ## What it means

    One rank tokenises, downloads, compiles or evaluates; the others wait for it in a legal
    collective.

    ## How it is found

    The rank is a suspect; it uses the processor, moves bytes or changes its frames, and
    training has not found its rhythm yet, or it is inside the forward of a module.

    Of texts, a rank has an open bar of progress, which took half of the limit or goes on below, and
    others gave up waiting for the id of NCCL that this rank makes at the first collective; or its
    stack shows that it prepares data, and its bar moves in the lines below.

    ## False alarms

    A loop that never ends looks the same at first. The note is repeated while the wait goes
    on.

    ## What to do

    Nothing, if the work is expected. Do it once before the job, or split it over ranks, to
    save the time.
    """

    code = codes.SETUP_SLOW
    name = "setup-slow"
    loss_effect = LossEffect.ELSEWHERE
    quiet_verdict = Verdict.WAITING
    severity = Severity.NOTE
    remedies: ClassVar[tuple[str, ...]] = (
        "nothing, if this work is expected",
        "prepare the data once before the job starts, or split the work over ranks",
    )
