"""H110 p2p-unmatched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.algorithms.transfers.host_pairs import is_logged
from whystuck.diagnose.algorithms.transfers.odd_transfers import Oddity, OddTransfer
from whystuck.diagnose.algorithms.transfers.peers import Stray
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Place
from whystuck.evidence.ranks import name_ranks


class P2pUnmatched(Rule):
    """A rank waits in a send or receive whose other half its peer never posts.

    ## What it means

    The peer is past the place, or never gets there: it waits in a collective in which the
    first rank will never arrive. Or both posted their half, but one to another peer, or with
    another tag.

    ## How it is found

    A rank is in a point-to-point op, by its op log, the recorder or the call its main thread is in;
    its peer has not posted the other half.

    The op logs of both ranks have their earlier steps. The rank is named that departed from its
    habit while the other one kept to its own, with the line of that call: it sent to or received
    from another peer than this line ever did, left its half out, or made one more than in each step
    before. `details.departure` says which: `peer`, `left out`, `too many` or `tag`. Tags are
    compared to how the earlier ones of the line go on, such as one value, or one more each time;
    `details.tags` has the one `used` and the one `expected`. Where two tags differ and neither
    rank has such a series, both are named, as a possible cause. Without op logs, the probe's
    counts of sends and receives tell of another peer, as likely.

    Of pasted stacks, one of two stages waits in a receive, and the other one is past all
    micro-batches of the step: in the norm of the gradients, their sums or the optimizer.

    A send too many may do no harm until its receiver has all that it wants and ends: who then loses
    the connection is judged in the same way, as `likely`, by where habits were broken before.

    Of logs, ranks print each send and receive as they make it (`mb=7 recv act from 2 ...`), and
    give up in transfers: the last line of a rank is what it waits in. The rank is named that has
    received what it was to send on, or has sent what comes later, and is at another transfer by
    now; or the one that printed nothing more and gives up nothing. Nothing is told where the two
    ends never printed a transfer alike.

    Without a habit, the peer is named where it waits in something else, for that rank or for one
    that waits for it, with the line it is at; then the line of the op without a partner. When the
    peer has no op log, that is only possible. Where hosts run ahead of their devices, the rank is
    named that left out its half against the habit of its earlier steps, with the line of that half;
    without such a rank, a call that went well before is only `possible`.

    Of logs, stages of a pipeline note each micro-batch (`recv mb=7 <- 1`, `waiting mb=7 <- 2`): the
    stage is named that had one and went on without passing it to the stage that waits for it. What
    a stage waits for may be told by its stack, in a comment (`# src=1, mb=6`), or by the name of
    the function (`recv_act`, `recv_grad`) and the last micro-batch that came. Where stages print
    how many micro-batches a step has, the few that run another number than most are named, once
    somebody waits in a transfer for it. Or one rank alone says again and again that it sends
    nothing (`skip publish`), while others wait in a receive until a time limit.

    ## False alarms

    When a rank sends or receives at a line for the first time, and that is the one too many, the
    rank that made it is at fault, which the evidence cannot tell: its peer is named, never as
    certain.

    ## What to do

    Give each send one receive, with the same tag, under the same condition on both ranks.
    """

    code = codes.P2P_UNMATCHED
    name = "p2p-unmatched"
    shows_ops = True
    needs = ("collectives", "peer_waits", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "post the missing half on the rank named, or take the other half out",
        "decide about both halves by a condition that both ranks know",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each rank that waits for a half that its peer does not post."""
        if scene.suspects.explained:
            return
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        for odd in (*scene.divergences.odd_transfers, *scene.divergences.odd_ends):
            yield self._make_odd(scene, policy, odd)
        for stray in scene.divergences.strays:
            yield self._make_stray(scene, policy, stray)
        for wait, others in _join_by_peer(_drop_followers(scene.suspects.unmatched)):
            yield self._make(scene, policy, wait, others)

    def _make(
        self, scene: Scene, policy: Policy, wait: Wait, others: Sequence[Wait] = ()
    ) -> Finding:
        peers = sorted(wait.missing)
        op = scene.ops.name_wait(wait)
        where = []
        because: list[Citation] = [scene.ops.cite_wait(wait)]
        doing = ""
        for peer in peers:
            other = next((one for one in scene.waits.pending if one.rank == peer), None)
            frames = scene.ops.get_wait_site(other) if other else scene.exits.find_last_frames(peer)
            if scene.divergences.missed_half is not None:
                frames = scene.ops.get_site(scene.divergences.missed_half.expected_row) or frames
            where += make_places(peer, frames, policy.places_per_rank)
            because.append(
                scene.ops.cite_wait(other)
                if other
                else scene.stacks.cite(peer, f"rank {peer} is here")
            )
            if other and not doing:
                doing = f" and waits in {scene.ops.name_wait(other)}"
        site = scene.ops.get_wait_site(wait)
        where += make_places(wait.rank, site, 1)
        place = f" at {describe_place(site[0])}" if site else ""
        # What went well before has another reason, as long as the rank did what it always does.
        is_sure = scene.divergences.missed_half is not None or not scene.wait_cycle.has_gone_well(
            wait
        )
        missing = "send" if op.startswith("recv") else "receive"
        elsewhere = "" if doing else _name_place_of(scene, peers)
        doing += elsewhere + _name_others(others)
        because += [scene.ops.cite_wait(one) for one in others[:_MAX_CITED]]
        finding = self.make_finding(
            f"{name_ranks(peers)} never posted the {missing} that rank {wait.rank} waits for in "
            f"{op}{place}{doing}",
            self._judge(scene, wait) if is_sure else Confidence.POSSIBLE,
            Blame(
                ranks=peers,
                groups=[wait.group.label],
                victims=sorted(scene.waits.waiting),
                where=where,
            ),
            because=because,
            details={"pair": [wait.rank, *peers], "op": op, "waiting_rank": wait.rank},
        )
        return replace(finding, remedies=[_LOOK, *finding.remedies]) if elsewhere else finding

    def _make_odd(self, scene: Scene, policy: Policy, odd: OddTransfer) -> Finding:
        """Make the finding of a rank that departed from its habit."""
        wait, ranks = odd.wait, list(odd.ranks)
        details: dict[str, Any] = {
            "pair": [wait.rank, *sorted(wait.missing)],
            "op": scene.ops.name_wait(wait),
            "waiting_rank": wait.rank,
            "departure": odd.oddity.value,
        }
        if odd.oddity is Oddity.TAG:
            details["tags"] = {"used": _get_tag(scene, odd.row), "expected": odd.expected_tag}
        rows = [row for row in (odd.row, odd.expected_row, odd.other_row) if row != NO_ROW]
        because = [
            scene.ops.cite_row(
                row, f"rank {int(scene.ops.table.rank[row])} calls {scene.ops.name_op(row)}"
            )
            for row in rows
        ]
        finding = self.make_finding(
            _describe_odd(scene, odd),
            _judge_odd(scene, odd),
            Blame(
                ranks=ranks,
                groups=[wait.group.label],
                victims=sorted(scene.waits.waiting - set(ranks)),
                where=_place_odd(scene, policy, odd),
            ),
            because=[scene.ops.cite_wait(wait), *because],
            details=details,
        )
        return replace(finding, remedies=[_REMEDIES[odd.oddity]])

    def _make_stray(self, scene: Scene, policy: Policy, stray: Stray) -> Finding:
        """Make the finding of a rank that named another peer, by the counts of its probe."""
        wait, used, usual = stray.wait, stray.used, stray.usual
        arrow = "to" if used.kind == "send" else "from"
        place = f" in {describe_place(used.site[0])}"
        finding = self.make_finding(
            f"rank {stray.rank} posted {used.kind} {arrow} rank {used.peer}{place}, a line that "
            f"named rank {usual.peer} {usual.count} times before; rank {wait.rank} waits for it",
            Confidence.LIKELY,
            Blame(
                ranks=[stray.rank],
                groups=[wait.group] if wait.group else [],
                victims=sorted(scene.waits.waiting - {stray.rank}),
                where=make_places(stray.rank, used.site, policy.places_per_rank),
            ),
            because=[
                Citation(
                    f"rank {wait.rank} waits in {wait.kind} with rank {wait.peer}", wait.artifact
                ),
                Citation(f"rank {stray.rank} counts its sends and receives", used.artifact),
            ],
            details={
                "pair": [wait.rank, stray.rank],
                "op": wait.kind,
                "waiting_rank": wait.rank,
                "departure": Oddity.PEER.value,
            },
        )
        return replace(finding, remedies=[_REMEDIES[Oddity.PEER]])

    def _judge(self, scene: Scene, wait: Wait) -> Confidence:
        """Judge by the source: op logs of both ranks hold all that they posted."""
        if wait.row == NO_ROW and not wait.missing & scene.ops.recorded_ranks:
            # The transfer may as well be the one too many.
            return Confidence.POSSIBLE
        if not is_logged(scene.ops.table, wait.row):
            return Confidence.LIKELY
        logs = {log.rank for log in scene.evidence.ops.logs}
        if not wait.missing <= logs:
            # What the peer posted is not known.
            return Confidence.POSSIBLE
        # That it was not posted is sure; whether it should have been, only a habit tells.
        is_sure = wait.is_sure and scene.divergences.missed_half is not None
        return Confidence.CERTAIN if is_sure else Confidence.LIKELY


_MAX_CITED = 3
_LOOK = "look at the line where the rank named is: it posts nothing until it comes back from there"
_REMEDIES = {
    Oddity.PEER: "name the peer that waits for the call: both ranks must work it out alike",
    Oddity.TAG: "give both halves one tag, worked out from what both ranks know",
    Oddity.LEFT_OUT: (
        "post the half that was left out, or decide about both halves by a condition that both "
        "ranks know"
    ),
    Oddity.TOO_MANY: "post as many as the peer does: let both count by what both ranks know",
}


def _get_tag(scene: Scene, row: int) -> int:
    return scene.ops.table.forms[int(scene.ops.table.form[row])].tag


def _place_odd(scene: Scene, policy: Policy, odd: OddTransfer) -> list[Place]:
    """Return the line of what was done, or left out, of each rank named."""
    rank, limit = odd.ranks[0], policy.places_per_rank
    if len(odd.ranks) > 1:
        rows = (odd.row, odd.other_row)
        sites = [(int(scene.ops.table.rank[row]), scene.ops.get_site(row)) for row in rows]
        return [place for one, site in sites for place in make_places(one, site, limit)]
    if odd.oddity is not Oddity.LEFT_OUT:
        return make_places(rank, scene.ops.get_site(odd.row), limit)
    # The line that was left out, and the one that was called in its place.
    left_out, called = scene.ops.get_site(odd.expected_row), scene.ops.get_site(odd.row)
    return [*make_places(rank, left_out, limit), *make_places(rank, called, 1)]


def _describe_odd(scene: Scene, odd: OddTransfer) -> str:
    rank, wait = odd.ranks[0], odd.wait
    did = _name_call(scene, odd.row)
    waits = f"rank {wait.rank} waits in {scene.ops.name_wait(wait)}"
    if odd in scene.divergences.odd_ends and odd.oddity is not Oddity.LEFT_OUT:
        return _describe_odd_end(scene, odd)
    if odd.oddity is Oddity.PEER:
        usual = scene.ops.name_op(odd.expected_row)
        tail = f"; {waits}" if wait.rank != rank else ""
        return f"rank {rank} posted {did}, a line that always posted {usual} before{tail}"
    if odd.oddity is Oddity.LEFT_OUT:
        usual = _name_call(scene, odd.expected_row)
        return f"rank {rank} left out {usual}, which it made in each step before; {waits} for it"
    if odd.oddity is Oddity.TOO_MANY:
        peers = name_ranks(sorted(wait.missing))
        return (
            f"rank {rank} waits in {did}, one more than in the steps before; {peers} posted as "
            "many as ever"
        )
    used, other = _get_tag(scene, odd.row), _name_call(scene, odd.other_row)
    mine, theirs = (int(scene.ops.table.rank[row]) for row in (odd.row, odd.other_row))
    if len(odd.ranks) > 1:
        return (
            f"rank {mine} posted {did} and rank {theirs} {other}: messages of tag {used} and tag "
            f"{odd.expected_tag} never meet"
        )
    return (
        f"rank {mine} used tag {used} where tag {odd.expected_tag} came next by its earlier ones: "
        f"{did}; rank {theirs} posted {other}"
    )


def _describe_odd_end(scene: Scene, odd: OddTransfer) -> str:
    """Say what a rank did far before the end, which a rank noticed that waits there."""
    wait, did = odd.wait, _name_call(scene, odd.row)
    usual = scene.ops.name_op(odd.expected_row)
    what = f"where {usual} came next" if odd.oddity is Oddity.PEER else "one more than"
    return (
        f"rank {odd.ranks[0]} posted {did}, {what} in its steps before; in the end, "
        f"rank {wait.rank} is in {scene.ops.name_wait(wait)} without a partner"
    )


def _name_call(scene: Scene, row: int) -> str:
    site = scene.ops.get_site(row)
    return scene.ops.name_op(row) + (f" in {describe_place(site[0])}" if site else "")


def _judge_odd(scene: Scene, odd: OddTransfer) -> Confidence:
    """Judge how sure it is who is wrong."""
    if len(odd.ranks) > 1:
        return Confidence.POSSIBLE
    # One more of a call may be the one that the peer was to answer now, for the first time.
    found = scene.divergences.odd_transfers  # in an end, more may have been wrong
    is_clear = odd.oddity is not Oddity.TOO_MANY and len(found) == 1
    return Confidence.CERTAIN if is_clear and odd.wait.is_sure else Confidence.LIKELY


def _name_place_of(scene: Scene, peers: Sequence[int]) -> str:
    """Say where a peer is by its stack; nothing of several, or where that is not known."""
    if len(peers) != 1 or peers[0] not in scene.stacks.positions:
        return ""
    frames = scene.exits.find_last_frames(peers[0])
    return f"; rank {peers[0]} is at {describe_place(frames[0])}" if frames else ""


def _name_others(others: Sequence[Wait]) -> str:
    """Say who waits for the same peer."""
    ranks = sorted({one.rank for one in others})
    waits = "waits" if len(ranks) == 1 else "wait"
    return f"; {name_ranks(ranks)} {waits} likewise" if ranks else ""


def _join_by_peer(waits: Sequence[Wait]) -> Iterator[tuple[Wait, list[Wait]]]:
    """Yield the first wait for each peer that many wait for, with the others: it is one cause."""
    by_peer = defaultdict[frozenset[int], list[Wait]](list)
    for wait in waits:
        by_peer[wait.missing].append(wait)
    for first, *others in by_peer.values():
        yield first, others


def _drop_followers(waits: Sequence[Wait]) -> Sequence[Wait]:
    """Leave out ranks that did not post a half for one that is itself waited for.

    A rank that named another peer leaves two halves alone, its own and the one that was to meet
    it: the rank that it named has done nothing wrong.
    """
    missing = frozenset[int]().union(*(wait.missing for wait in waits))
    return [wait for wait in waits if wait.rank not in missing] or waits
