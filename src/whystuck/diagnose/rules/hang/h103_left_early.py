"""H103 left-early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.departures import describe_departure
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.rule_kinds import (
    DivergenceRule,
    SuspectRule,
    name_ops,
    name_place,
)
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ops.log import slice_logs
from whystuck.evidence.ranks import name_ranks


class LeftEarly(Rule):
    """A rank left the loop, or the job, while its peers still wait for it.

    ## What it means

    Ranks had different numbers of batches or steps. One has left the loop: it has ended, is in
    `destroy_process_group`, or is at a later collective; the others wait in the loop. A rank that
    left out a step on the way, such as by `continue` after a NaN, leaves the loop early as well:
    all of its later steps look alike, and the end of the loop is where it shows.

    ## How it is found

    A rank that others wait for ended with exit code 0 or is in `destroy_process_group`; or its
    line is after the loop that holds the line of the others, as the source shows. With several
    groups, its calls are compared with its own earlier steps first, as for H127. Where it called
    `sys.exit`, `quit` or `os._exit`, the line of that call is named (`details.call`); a bare
    `raise SystemExit` leaves no such record, and the line of its last collective stands for it.

    Where the later collective has another size, gloo ends the job: the ops tell it all the same.

    Where no op was recorded, stacks alone can tell: few ranks are past the loop that most are
    still in. It is `possible` for one of two ranks. Nobody is named when most ranks are past the
    loop: the others may have made a call more in it. Of stacks that somebody pasted without the
    source, it is `possible` where few are in a collective behind a call of the same function, and
    all others wait inside that call at several lines, in one op or for their devices.

    A rank that says so, and that others lose while they print further steps than it, left as well;
    with rank 0, its store goes, and that is what the others say.

    Of logs alone, a few ranks say that they leave the loop or have no more data, go on with nothing
    later, and others wait until a time limit. What all ranks say is the normal end of a loop; it is
    `possible` where rank 0 may speak for all. So it is where NCCL RAS, `torchfrtrace` or watchdogs
    show ranks behind, and these alone say that they left the loop, had fewer batches than all
    others, or are at the last batch of an epoch that is longer for others; or these say that they
    are done after so many batches, and all others, which waited in vain, were at further ones. Or a
    rank came to the end of its program before others gave up: `srun` says that its task exited
    while others run, or torch warns in it alone that its process groups were not destroyed. Or
    pasted stacks show few ranks in `destroy_process_group` or at the end of their program, which
    raised nothing, while more ranks print that they waited until a time limit. Or NCCL RAS calls a
    process dead, and its host does not have it any more (`ls /proc/PID`).

    ## False alarms

    A rank that ends first in a normal end of a job, while nobody waits for it, is not reported. Of
    sends and receives, one too many ends the receiver early: where habits tell who made it, that is
    H110, and a rank that made more steps than others is `possible` only.

    ## What to do

    Give all ranks the same number of steps, or use `Join` for uneven inputs.
    """

    code = codes.LEFT_EARLY
    name = "left-early"
    loss_effect = LossEffect.ELSEWHERE
    shows_ops = True
    compares_ops = True
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "give all ranks the same number of steps: `DistributedSampler`, `drop_last=True`, or "
            "a count that all ranks share"
        ),
        "for inputs that must be uneven, wrap the loop in `torch.distributed.algorithms.join.Join`",
        (
            "where a step is left out on one rank (`continue` after a NaN or an exception), let "
            "all ranks decide together to leave it out"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for ranks that are past what the others wait in."""
        if told := scene.story.of(self.code):
            yield from (tell_case(self, case) for case in told)
            return
        if scene.exits.is_crash:
            ended = list(self._check_ends(scene, policy))
            # Who is past the loop meets its peers in another op, and its size ends them all.
            yield from ended or _ByOps().check(scene, policy)
            return
        yield from _ByState().check(scene, policy)
        yield from _ByOps().check(scene, policy)

    def _check_ends(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Look for ranks that ended well, whose peers then lost their connections."""
        left, cut = scene.exits.left_and_cut
        if not left or scene.divergences.odd_ends:
            return
        where = [
            place
            for rank in left
            # Where nothing is left of the rank, the line that its peers are still at is the
            # one it is past.
            for place in make_places(
                rank,
                _find_last_frames(scene, rank) or scene.exceptions.by_rank[cut[0]].frames,
                policy.places_per_rank,
            )
        ]
        calls = {
            rank: scene.exits.departures[rank].call
            for rank in left
            if rank in scene.exits.departures
        }
        how = describe_departure(scene.exits.departures.get(left[0])) if len(left) == 1 else ""
        yield self.make_finding(
            f"{name_ranks(left)} ended with exit code 0{how} while {name_ranks(cut)} still needed "
            "it",
            _weigh_ends(scene, left),
            Blame(ranks=left, victims=cut, where=where),
            because=[
                Citation(f"rank {rank} ended with exit code 0", scene.exits.by_rank[rank].artifact)
                for rank in left
            ]
            + [
                Citation(f"rank {rank} called {call}", scene.exits.departures[rank].artifact)
                for rank, call in calls.items()
            ]
            + [
                Citation(
                    f"rank {rank} lost its connection", scene.exceptions.by_rank[rank].artifact
                )
                for rank in cut
            ],
            details={"exit_code": 0} | ({"call": calls[min(calls)]} if calls else {}),
        )


def _weigh_ends(scene: Scene, left: Iterable[int]) -> Confidence:
    """Who got a message too many ends before its peers, and is not at fault."""
    if any(not wait.is_p2p for wait in scene.waits.pending):
        return Confidence.CERTAIN
    steps = _count_steps(scene.evidence)
    last = min((steps[rank] for rank in left if rank in steps), default=0)
    # Who did more than others did all that it had to do.
    is_ahead = any(last > count for rank, count in steps.items() if rank not in left)
    return Confidence.POSSIBLE if is_ahead else Confidence.LIKELY


def _count_steps(evidence: Evidence) -> dict[int, int]:
    """Return the steps that each rank with an op log made before its last op."""
    ops = evidence.ops
    return {
        log.rank: int(ops.step[own].max())
        for log, own in zip(ops.logs, slice_logs(ops), strict=True)
        if own.stop > own.start
    }


def _find_last_frames(scene: Scene, rank: int) -> tuple[Frame, ...]:
    """Return the call by which a rank ended itself, else the last op that it issued."""
    departure = scene.exits.departures.get(rank)
    return departure.frames if departure else scene.ops.find_last_site(rank)


class _ByState(SuspectRule):
    """Ranks whose own state shows that they left."""

    code = LeftEarly.code
    name = LeftEarly.name
    remedies = LeftEarly.remedies


class _ByOps(DivergenceRule):
    """Ranks whose op comes after the loop of the others."""

    code = LeftEarly.code
    name = LeftEarly.name
    remedies = LeftEarly.remedies
    way = DivergenceKind.LEFT

    def find_place(self, scene: Scene, divergence: Divergence) -> dict[int, tuple[Frame, ...]]:
        """Return the line of each culprit, then the line in the loop that it is past."""
        peer = next((rank for rank in divergence.others if rank in divergence.rows), None)
        loop = scene.ops.get_site(divergence.rows[peer])[:1] if peer is not None else ()
        places = super().find_place(scene, divergence)
        return {rank: (*frames[:2], *loop) for rank, frames in places.items()}

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        verb = "is" if len(divergence.culprits) == 1 else "are"
        return (
            f"{name_ranks(divergence.culprits)} left the loop and {verb} at "
            f"{name_ops(scene, divergence, divergence.culprits)} in "
            f"{name_place(scene, divergence, divergence.culprits)}; "
            f"{name_ranks(divergence.others)} still in "
            f"{name_ops(scene, divergence, divergence.others)} in "
            f"{name_place(scene, divergence, divergence.others)}"
        )
