"""H109 p2p-cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places, select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import name_call
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.suspects.crossed_transfers import find_crossed_transfers
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.rule_kinds import place_waits
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_PAIR = 2


class P2pCycle(Rule):
    """Ranks send or receive in an order in which each waits for the next, in a ring.

    ## What it means

    Every rank of the ring is in a send or a receive whose other half its peer posts only later:
    all receive first, or all send first with tensors too large to be buffered.

    ## How it is found

    From the point-to-point ops that are not over, by the op logs of the ranks or by the recorder
    (NCCL; that of gloo has none), or from the calls that the main threads are in, each rank waits
    for the peer of its op when that has not posted the other half. A ring of such waits is a
    deadlock, when the ranks have no habit, or all of them changed theirs; where one of them left
    its own, that is told as H110. `details.ring` is its order. Where the same calls of a device
    went well before, the finding is only `possible`. So is a ring in which a rank waits for one
    that made transfers before, but none with it: one of the two has a wrong list of peers.

    Of logs: all ranks of the job say by their watchdogs, or by tracebacks in gloo, that they are in
    the same half of a transfer. Of few among many, source that stands beside tells that each makes
    the other half with the same peer only later; then nobody is named. Nor is anybody where more
    than two ranks are in a receive, as one that left out a send leaves all others so. Ranks that
    print whom they send to, or receive from, are named where the last ones of them are a ring.

    Of stacks alone, all ranks are in a send, or all in a receive that is called from one line. In
    receives of several lines, the peers of which are not known, one rank may as well have left out
    a send, as stages of a pipeline do: the finding is `possible` then and names nobody.

    Of stacks that somebody pasted with such source, ranks are named that are at one line of a send
    or receive while all others wait in collectives behind it: whose transfers are over is the peer
    of none of them.

    ## False alarms

    None are known.

    ## What to do

    Let even ranks send first and odd ranks receive first, or use `batch_isend_irecv`.
    """

    code = codes.P2P_CYCLE
    name = "p2p-cycle"
    shows_ops = True
    needs = ("collectives", "peer_waits", "stacks", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "post both halves at once: `batch_isend_irecv([P2POp(isend, ...), P2POp(irecv, ...)])`",
        "or let one rank of each pair send first and the other receive first",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for a ring of point-to-point ops."""
        if not scene.wait_cycle.edges:
            yield from self._judge_stacks(scene, policy)
            yield from self._judge_crossed(scene, policy)
            yield from (tell_case(self, case) for case in scene.story.of(self.code))
        if not scene.wait_cycle.edges or not all(wait.is_p2p for wait in scene.wait_cycle.edges):
            return
        waits = [wait for wait in scene.wait_cycle.all_waits if wait.is_p2p]
        ranks = sorted({wait.rank for wait in waits})
        steps = ", ".join(
            f"rank {wait.rank} is in {scene.ops.name_wait(wait)} and waits for "
            f"{name_ranks(sorted(wait.targets))}"
            for wait in scene.wait_cycle.edges
        )
        yield self.make_finding(
            f"{name_ranks(ranks)} send and receive in a ring in which each waits for the next: "
            f"{steps}{_tell_strangers(scene)}",
            scene.wait_cycle.confidence,
            Blame(
                ranks=ranks,
                groups=sorted({wait.group.label for wait in waits}),
                victims=sorted(scene.waits.waiting),
                where=place_waits(scene, policy, [*scene.wait_cycle.edges, *waits]),
            ),
            because=[scene.ops.cite_wait(wait) for wait in scene.wait_cycle.edges],
            details={
                "ring": [wait.rank for wait in scene.wait_cycle.edges],
                "ops": {str(wait.rank): scene.ops.name_wait(wait) for wait in waits},
            },
        )

    def _judge_stacks(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when all ranks are in transfers: then some of them form a ring.

        Each waits for another one, and nobody is elsewhere.
        """
        ranks = sorted(scene.waits.in_transfer_by_stack)
        if not scene.movement.is_hung or scene.divergences.first or scene.suspects.explained:
            return
        if len(ranks) < _PAIR or set(ranks) != scene.ranks.all or scene.waits.pending:
            return
        if any(True for _ in scene.story.of(codes.P2P_UNMATCHED)):
            return
        limit = policy.places_per_rank
        is_clear = _is_clear([scene.stacks.positions[rank].frames for rank in ranks])
        tail = "" if is_clear else ", or one of them left out its half"
        yield self.make_finding(
            f"{name_ranks(ranks)} are all in a send or receive, so that some wait for each other "
            f"in a ring{tail}",
            Confidence.LIKELY if is_clear else Confidence.POSSIBLE,
            Blame(
                ranks=ranks if is_clear else [],
                victims=[] if is_clear else ranks,
                where=[
                    place
                    for rank in ranks
                    for place in make_places(rank, scene.stacks.positions[rank].frames, limit)
                ],
            ),
            because=[
                scene.stacks.cite(rank, f"rank {rank} is in a transfer") for rank in ranks[:4]
            ],
            details={"ring": [], "ops": {}},
        )

    def _judge_crossed(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding of pasted stacks: some ranks are in one half, all others are past it."""
        found = find_crossed_transfers(scene) if scene.movement.is_hung else None
        if found is None or scene.suspects.explained:
            return
        frames = {rank: scene.stacks.positions[rank].frames for rank in found.ranks}
        limit = policy.places_per_rank
        yield self.make_finding(
            f"{name_ranks(found.ranks)} wait for each other in {found.half}: each posts the other "
            f"half only later; {name_ranks(found.others)} are past that",
            Confidence.LIKELY,
            Blame(
                ranks=found.ranks,
                victims=found.others,
                where=[
                    place for rank in frames for place in make_places(rank, frames[rank], limit)
                ],
            ),
            because=[
                *(scene.stacks.cite(rank, f"rank {rank} is in {found.half}") for rank in frames),
                *(Citation(line.text, line.artifact, line.row) for line in found.source),
            ],
            details={"ring": [], "ops": dict.fromkeys(map(str, found.ranks), found.half)},
        )


def _is_clear(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Tell whether transfers of all ranks, whose peers are not known, are made in a wrong order.

    In a ring of receives, all come from one line. Of a pipeline, whose first stage receives no
    activation and whose last one no gradient, all wait in receives of several lines in the end
    where one of them left out a send.
    """
    kinds = {
        "recv" if name_call(frames).startswith(("recv", "irecv")) else "send" for frames in stacks
    }
    sites = {tuple(select_user_frames(frames)) for frames in stacks}
    return kinds == {"send"} or (kinds == {"recv"} and len(sites) == 1)


def _tell_strangers(scene: Scene) -> str:
    """Write who waits for a rank that never made a transfer with it."""
    pairs = scene.wait_cycle.strangers
    return "".join(
        f"; rank {other} made transfers before, but none with rank {rank}" for rank, other in pairs
    )
