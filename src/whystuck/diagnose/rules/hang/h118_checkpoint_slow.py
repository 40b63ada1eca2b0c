"""H118 checkpoint-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.rule_kinds import SuspectRule
from whystuck.evidence.finding import Severity, Verdict


class CheckpointSlow(SuspectRule):
    """A rank writes or loads a checkpoint while the others wait: not stuck.

    ## What it means

    Saving or loading takes long because one rank writes or reads all of it, or the storage is slow.

    ## How it is found

    The main thread of a suspect is inside a save, and its written bytes or its frames move
    between samples; of pasted stacks, where `ls -l`, `du` or `stat` show three times that the file
    grows (twice, where one command looks at one place before and after a `sleep`), or
    `write_bytes` of `/proc/PID/io` or `pidstat -d` that the process writes. A process of unknown
    rank, while the others wait, is the rank that said that it saves a file. Or it is inside a load
    (`torch.load`, or a function such as `load_checkpoint`), and its bytes, its frames or its use
    of the processor show that it goes on; then the finding is `likely`, and names the line that
    loads. A load that does not move is H101, and H116 where the file system does not answer.

    Of logs, how long ranks say that a save took, or the times between the lines that begin and
    end a file: where that is half of the time limit and more, and others waited meanwhile. A
    rank is named that took five times as long as most; where all were slow, nobody is. Of a
    time in the line of a step (`| ckpt/gather_state 55.0 s |`), it is 0.9 of the limit. Or
    looks at the file show that it grew, while ranks waited in vain or are in a call with the
    others by their stacks; the rank is the one that said that it saves. Where each rank writes
    a shard (`__3_0.distcp`), it is the one whose shard is far smaller than the others, which
    are whole, and grew between two looks; who says that a checkpoint is saved does no more than
    others then. Or a bar of an upload went on while ranks gave up, or had taken half of their
    limit. Where nobody waited in vain, the steps behind each line that says that a checkpoint
    is saved, and no others, take far longer.

    ## False alarms

    A function that has `save` or `load_checkpoint` in its name and does something else.

    ## What to do

    Save and load from all ranks (`torch.distributed.checkpoint`), save asynchronously, or use
    faster storage.
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
        "for a load: `torch.load(..., mmap=True)` reads only what is used",
        "check the storage: the rate is in the measures of this finding",
    )
