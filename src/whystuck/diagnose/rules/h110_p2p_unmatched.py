"""H110 p2p-unmatched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.algorithms.frames import describe_place, make_places
from whystuck.diagnose.algorithms.host_pairs import is_logged
from whystuck.diagnose.algorithms.waits import Wait
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class P2pUnmatched(Rule):
    """A rank waits in a send or receive whose other half its peer never posts.

    ## What it means

    The peer is past the place, or never gets there: it waits in a collective in which the
    first rank will never arrive.

    ## How it is found

    A rank is in a point-to-point op, by its op log, the recorder or the call its main thread is in;
    its peer has not posted the other half and waits in something else, for that rank or for one
    that waits for it. The peer is named, with the line it is at; then the line of the op without a
    partner. Op logs of both ranks that hold all ops from the first on make it certain; when the
    peer has none, it is only possible. Where hosts run ahead of their devices, the rank is named
    that left out its half against the habit of its earlier steps, with the line of that half;
    without such a rank, a call that went well before is only `possible`.

    ## False alarms

    When the send or receive itself is the one too many, the rank that made it is at fault, which
    the evidence cannot tell.

    ## What to do

    Give each send one receive, under the same condition on both ranks.
    """

    code = "H110"
    name = "p2p-unmatched"
    needs = ("collectives", "peer_waits")
    remedies: ClassVar[tuple[str, ...]] = (
        "post the missing half on the rank named, or take the other half out",
        "decide about both halves by a condition that both ranks know",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each rank that waits for a half that its peer does not post."""
        if scene.suspicions:
            return
        for wait in scene.unmatched:
            yield self._make(scene, policy, wait)

    def _make(self, scene: Scene, policy: Policy, wait: Wait) -> Finding:
        peers = sorted(wait.missing)
        op = scene.name_wait(wait)
        where = []
        because: list[Citation] = [scene.cite_wait(wait)]
        doing = ""
        for peer in peers:
            other = next((one for one in scene.waits if one.rank == peer), None)
            frames = scene.get_wait_site(other) if other else scene.find_last_frames(peer)
            if scene.missed_half is not None:
                frames = scene.get_site(scene.missed_half.expected_row) or frames
            where += make_places(peer, frames, policy.places_per_rank)
            because.append(
                scene.cite_wait(other) if other else scene.cite_stack(peer, f"rank {peer} is here")
            )
            if other and not doing:
                doing = f" and waits in {scene.name_wait(other)}"
        site = scene.get_wait_site(wait)
        where += make_places(wait.rank, site, 1)
        place = f" at {describe_place(site[0])}" if site else ""
        # What went well before has another reason, as long as the rank did what it always does.
        is_sure = scene.missed_half is not None or not scene.has_gone_well(wait)
        missing = "send" if op.startswith("recv") else "receive"
        return self.make_finding(
            f"{name_ranks(peers)} never posted the {missing} that rank {wait.rank} waits for in "
            f"{op}{place}{doing}",
            self._judge(scene, wait) if is_sure else Confidence.POSSIBLE,
            Blame(
                ranks=peers,
                groups=[wait.group.label],
                victims=sorted(scene.waiting),
                where=where,
            ),
            because=because,
            details={"pair": [wait.rank, *peers], "op": op, "waiting_rank": wait.rank},
        )

    def _judge(self, scene: Scene, wait: Wait) -> Confidence:
        """Judge by the source: op logs of both ranks hold all that they posted."""
        if not is_logged(scene.table, wait.row):
            return Confidence.LIKELY
        logs = {log.rank for log in scene.evidence.ops.logs}
        if not wait.missing <= logs:
            # What the peer posted is not known.
            return Confidence.POSSIBLE
        return Confidence.CERTAIN if wait.is_sure else Confidence.LIKELY
