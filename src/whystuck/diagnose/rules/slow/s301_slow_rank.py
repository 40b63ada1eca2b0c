"""S301 slow-rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.phase_facts import StepMarks
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.rules.slow.late_words import tell_late
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity


class SlowRank(Rule):
    """One rank is late in step after step, and all others wait for it.

    ## What it means

    All members wait in an op for the last one. When that is the same rank in most steps, its host,
    device or data is slower than those of its peers, and the whole job runs at its speed.

    ## How it is found

    From the times at which each rank issued its ops, in groups whose members make the same
    calls. What a rank takes from the moment at which all had come to one op to its next op is its
    own time; what it waited in other groups meanwhile is left out. Own times are summed over
    stretches of a step or two, because only the first op of several that follow each other
    directly shows who is late. The rank must take longer than all others, by 5 ms and 3 % at
    least, in seven of ten stretches and in each quarter of the time, more often than chance or a
    machine that is busy for a while explains. That may be the whole run, or a part of it of 36
    steps: then the summary says since which step. Of several ranks that are slow alike, all are
    named, if they are no more than half; all of one node are S302. Ops that ranks call from
    different lines, as with uneven inputs under `Join`, and those after a send or a receive tell
    nothing.

    Clocks of hosts differ; the offset is estimated from the times at which ops were over
    (one moment for all), else from ops that follow another one directly. The finding is `likely`
    with such an estimate or on one node, else `possible`.

    Hosts of devices run ahead, so that the time of a call tells nothing of the device. There
    the rank is named whose device waits least in the ops: from their start, which is recorded
    with `TORCH_NCCL_ENABLE_TIMING`, to their end, on its own clock. Without starts, calls count
    when the op before was over by then. Of the `measures`, `lost_ms` is the median wait that
    the rank causes, `lost_share` its share of the time, `share_last` in which share of the
    stretches (on devices: of the ops) it is the last.

    With marks of steps (`whystuck run --marks`), `details.phase` is the phase in which the rank
    takes longer than the median of the others, if that is six tenths of what is lost:
    `dataloader`, `forward`, `backward`, `optimizer`, `checkpoint`, or `host` between them. A rank
    that takes twice as long as any other one for its checkpoints is named for these alone.

    Of logs alone, from the times of each rank that Megatron prints (`--timing-log-option all`): a
    rank whose own work takes a quarter longer than the median, while all others are near to it. The
    same from lines of each rank (`fwd 231.0 ms | bwd 472.0 ms`, `forward-compute: 231.0`), by the
    middle of what it prints last, or from one line with the times of all ranks, or from the last
    table with a row or a column for each rank: of Markdown, boxes, commas or blanks. Where a table
    has times of waits, nobody is named for whom the others do not wait; and 6 % are enough where
    they do. Ranks that have more to do, stages of a pipeline, and numbers of devices of several
    hosts are left out. Where only the
    shortest and the longest time of all is told (`forward-compute ...: (1214.3, 2233.1)`), and they
    are far apart, some rank is slow, and nobody is named.
    Lines that tell the least and the most of all ranks and whose they are (Megatron's straggler
    lines, `slowest rank 12 (1.9 s)`) name the one that is last in three of four, or that has the
    least throughput as well; where it changes, nobody. Where all take as long, as in a step that
    ends in a collective, its throughput alone names a rank: with the lowest clock, or with a list
    (`Bottom 4 Ranks with lowest Etpt(TF)`) in which it stands apart.

    What ranks do together takes longest on those that wait, and is left out. Ranks that the
    straggler reports of nvidia-resiliency-ext name are told as well.

    ## False alarms

    A rank with legal extra work in each step, such as writing logs.

    ## What to do

    Compare the host and the device of this rank with the others; profile one step of it.
    """

    code = codes.SLOW_RANK
    name = "slow-rank"
    severity = Severity.WARNING
    needs = ("collectives", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "compare clocks, temperature and processor load of this rank's device and host with others",
        "profile a step of this rank beside one of a peer: input, forward and backward",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each rank that its peers wait for, or a few that are slow alike."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        for late in scene.pace.late_ranks:
            if scene.pace.find_slow_node(late) is None:
                yield tell_late(self, scene, policy, late)
        if not scene.pace.late_ranks and scene.pace.is_known:
            yield from self._tell_saves(scene.pace.step_marks)

    def _tell_saves(self, marks: StepMarks) -> Iterator[Finding]:
        """Yield a finding for a rank whose checkpoints take longer than those of its peers."""
        saves = marks.slow_saves
        if saves is None:
            return
        took = f"{saves.took_ms:.0f} ms, any other {saves.others_ms:.0f} ms at most"
        yield self.make_finding(
            f"rank {saves.rank} saves its checkpoints slowly: {took}; "
            f"{saves.share:.0%} of the time is lost",
            Confidence.LIKELY,
            Blame(ranks=[saves.rank], victims=sorted(marks.ranks - {saves.rank})),
            because=[Citation(f"rank {saves.rank} has marks of {saves.count} saves")],
            details={"phase": "checkpoint", "clock_offset_ns": 0},
            measures={
                "lost_ms": round(saves.took_ms - saves.others_ms, 3),
                "lost_share": round(saves.share, 4),
            },
        )
