"""H121 rendezvous-failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    make_places,
    name_function,
    select_user_frames,
)
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.cases.network.rendezvous import find_differences
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Finding, Severity
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_MAX_CITED = 4


class RendezvousFailed(LogRule):
    """Processes did not find each other: one is missing, or was started with something else.

    ## What it means

    Before training starts, all processes meet at a store: one of rank 0, or of the launcher. They
    wait until all have come, and fail together when the time limit is over, wherever the
    reason is. The ranks that print the time limit are those that came.

    ## How it is found

    Time limits and errors of the store, of torchrun's rendezvous, of gloo and of NCCL's bootstrap.
    What differs is looked for in this order: two processes of one rank; different `WORLD_SIZE`;
    more processes that came to a store than there are, as an earlier run left its file behind, or
    used the same address; different `MASTER_ADDR` or `MASTER_PORT`, where logs show the
    environment; a name that does not resolve; something else that listens at the address; a host
    that gave the others its loopback address, as its own name leads there; an address that refuses
    or does not answer, of the store or, in what gloo and HCCL print, of another rank; network cards
    that NCCL could not connect; and ranks that did not come, by the store's count or the key that
    others wait for; and hosts that print, but never joined as others of their kind did. Who joined
    only warns of a name without IPv6; such a warning counts where `kubectl get svc`, `nslookup` or
    `host` do not know that name either. Of Ascend devices, the one is named whose link `hccn_tool`
    shows to be down beside others.

    In `details`: `kind` is duplicate-rank, world-size, endpoint, unresolved, not-a-store, refused,
    unreachable, cards, missing-rank, missing-node, store-used-before, closed or timeout. `joined`
    and `expected` count processes or nodes, `missing` are ranks; `host` and `port` are the address;
    `variable` and `values` what differs.

    The line is that of the ranks named, by their stacks, else that at which others wait for them.

    In a job that still waits, the same is looked for in the environment of its processes, as long
    as all of them are in `init_process_group`.

    ## False alarms

    A rank that failed before it came to the rendezvous: where its error is known, that is the
    finding. A rank without any log is named only when the count leaves no other.

    ## What to do

    Compare the environment of the ranks named with that of the others, and reach the store from
    their host: `nc -vz $MASTER_ADDR $MASTER_PORT`.
    """

    code = codes.RENDEZVOUS_FAILED
    name = "rendezvous-failed"
    end_class = "configuration"
    explains = (codes.RANK_NEVER_JOINED, codes.LEFT_EARLY, codes.SETUP_SLOW)
    explains_from = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ("logs", "exceptions", "exits", "claims")
    remedies: ClassVar[tuple[str, ...]] = (
        "print the environment on all ranks: `env | grep -E 'MASTER_|RANK|WORLD_SIZE'`",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what logs or processes show, with the line at which ranks were seen."""
        for finding in super().check(scene, policy):
            yield finding if finding.where else _place(scene, policy, finding)

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what differs between processes that wait in ``init_process_group``."""
        del policy
        waiting = [rank for rank, at in scene.stacks.positions.items() if _is_joining(at.frames)]
        if scene.evidence.incident.kind not in {"stall", "snapshot"} or not waiting:
            return
        if set(waiting) < set(scene.stacks.positions) or len(scene.evidence.collectives):
            return
        answer = find_differences(scene.story.view)
        if answer is None:
            return
        claims = [claim for claim in scene.evidence.claims if claim.rank in answer.ranks]
        finding = self.make_finding(
            answer.says,
            answer.confidence,
            Blame(ranks=answer.ranks, victims=sorted(scene.ranks.all | set(waiting))),
            because=[
                *[
                    Citation(
                        f"process {one.pid} is rank {one.rank} of {one.world_size}", one.artifact
                    )
                    for one in claims[:4]
                ],
                Citation(f"{name_ranks(waiting)} wait in init_process_group"),
            ],
            details={"kind": answer.kind, **answer.details},
        )
        yield replace(finding, remedies=[*answer.remedies, *finding.remedies])


def _place(scene: Scene, policy: Policy, finding: Finding) -> Finding:
    """Add where the ranks named are, by their stacks; of none, where others wait for them."""
    named = [rank for rank in finding.culprits.ranks if rank in scene.stacks.positions]
    waiting = [rank for rank, at in scene.stacks.positions.items() if _is_joining(at.frames)]
    where = [
        place
        for rank in named or sorted(waiting)[:1]
        for place in make_places(rank, scene.stacks.positions[rank].frames, policy.places_per_rank)
    ]
    if not where:
        return finding
    away = [rank for rank in named if rank not in waiting]
    frames = select_user_frames(scene.stacks.positions[away[0]].frames) if away else ()
    is_one = len(finding.culprits.ranks) == 1 and bool(frames)
    tail = f"; it is in {describe_place(frames[0])}" if is_one else ""
    because = [scene.stacks.cite(rank, f"rank {rank} is here") for rank in away[:_MAX_CITED]]
    return replace(
        finding,
        summary=finding.summary + tail,
        where=where,
        because=[*finding.because, *because],
    )


def _is_joining(frames: Iterable[Frame]) -> bool:
    return any(name_function(frame) == "init_process_group" for frame in frames)
