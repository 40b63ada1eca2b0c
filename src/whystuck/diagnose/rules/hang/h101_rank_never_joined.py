"""H101 rank-never-joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.ras_facts import find_laggards, find_late_processes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.rule_kinds import SuspectRule
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class RankNeverJoined(SuspectRule):
    """A rank stays in code of its own while its peers wait for it in a collective.

    ## What it means

    All other members of a process group have entered a collective op; this rank has not
    issued it. It sleeps, is blocked, or computes on somewhere else.

    ## How it is found

    Pending ops of all ranks give a graph of who waits for whom; an op on a device waits wherever
    its host is, as in `.item()` or a launch. The ends of the graph's chains are suspects. A
    suspect whose state says nothing more special is reported where its main thread is now. It is
    `likely` when it uses no processor and no I/O and stays at one line, or when the stall is ten
    times longer than any gap seen before, else `possible`.

    So is a rank that is blocked in code of its own, such as an `atexit` handler, when all others
    have ended with exit code 0: the launcher waits for it.

    Where no op was recorded, an answer of NCCL RAS tells: a few ranks that issued fewer collectives
    of a communicator than its other members, or gave no answer, and are ahead of nobody in any
    other. In a stall that was watched they are suspects as above. Else they are `possible`:
    counts of a job that runs differ for a moment, too. Two answers of which one is past all of the
    other show a job that runs.

    Of logs alone, it is the rank that a monitored barrier or a report of torch names, or whose own
    counters say that all it issued is over while its peers wait in a later op. Where counters are
    all that is told, a rank that waits in another group, or whose own limit was met, is not named.

    Where no op was recorded, a rank that computes in the loop in which the others wait is
    `possible` once they have not run for 20 s.

    A rank that asks again and again for a sign that is no collective, such as a file that another
    rank makes (`wait_for_flag`, `while not os.path.exists(…)`), waits as its peers do, and is not
    named. Where a shell shows that the file is not there on its host, the finding is `likely`.
    Of any other function, its source tells: a `while` loop that ends by what a store or a file
    system answers (`while int(store.add(key, 0)) < world_size: time.sleep(0.1)`).

    So does one that is blocked in `get` or `wait` of a store: who should set the key is not
    recorded, and nobody is named.

    A rank whose log ends at the prompt of a debugger (`(Pdb)`) waits for a person to type.

    `torchfrtrace` and Horovod name the ranks that are missing: what they say is `likely`. So is a
    rank whose last words in a log are that it is still at something (`still in val loop`,
    `Validating: 23%`), while others waited until a time limit.

    Of pasted stacks of all ranks: the few that are in a collective of their own, while watchdogs
    say that the others gave up another one; or in a barrier, while most are at one line of
    `backward`, which is that of the next step.

    ## False alarms

    A rank that legally computes for long while the others wait. Before the first step, inside
    a save or load and while it runs the model, it is reported as H117 or H118 instead.

    ## What to do

    Look at the line named. Bound every wait with a timeout, and let all ranks leave a loop by
    a decision they share.
    """

    code = codes.RANK_NEVER_JOINED
    name = "rank-never-joined"
    loss_effect = LossEffect.ELSEWHERE
    shows_ops = True
    needs = (*SuspectRule.needs, "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "look at the line named: the other ranks wait until it returns",
        (
            "if the work there is legal and long, do it on all ranks, or raise the timeout of "
            "the group with `init_process_group(timeout=...)`"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield one finding for all such ranks."""
        yield from super().check(scene, policy)
        is_open = not (
            scene.ops.recorded_ranks
            or scene.suspects.explained
            or scene.suspects.parting
            or scene.exits.is_crash
        )
        laggard = find_laggards(scene.evidence, scene.ranks.all) if is_open else None
        left = {rank for case in scene.story.of(codes.LEFT_EARLY) for rank in case.ranks}
        if laggard is not None and left >= set(laggard.ranks):
            return
        if laggard is not None:
            ranks = laggard.ranks
            frames = [(rank, scene.exits.find_last_frames(rank)) for rank in ranks]
            yield self.make_finding(
                f"{name_ranks(ranks)} {laggard.text}, when NCCL RAS was asked",
                Confidence.POSSIBLE,
                Blame(
                    ranks=ranks,
                    victims=sorted(laggard.waiting),
                    where=[
                        place
                        for rank, found in frames
                        for place in make_places(rank, found, policy.places_per_rank)
                    ],
                ),
                details={"state": "unknown"},
            )
        elif is_open and (late := find_late_processes(scene.evidence)) is not None:
            yield self.make_finding(
                f"{late.text}, when NCCL RAS was asked",
                Confidence.POSSIBLE,
                Blame(nodes=late.hosts),
                details={"state": "unknown"},
            )
