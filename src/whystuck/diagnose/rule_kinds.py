"""The two common kinds of rule: one about a rank's own state, one about ranks that diverged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import Clash
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.waits import Wait
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.diagnose.logs.log_rule import names_more, tell_both, tell_case
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.thread_order import tell_threads
from whystuck.evidence.finding import Citation, Confidence, Finding, Place
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import format_ranks, is_process, name_ranks

NO_FRAMES = "a call without recorded frames"
_MAX_NAMED = 4
_RECORD = (
    "stacks alone tell no more: start the job with `whystuck run -- COMMAND`, which records the "
    "calls of each rank"
)


class SuspectRule(Rule):
    """A rule about ranks that others wait for, each explained by its own state."""

    needs: ClassVar[tuple[str, ...]] = (
        "stacks",
        "processes",
        "beats",
        "exceptions",
        "exits",
        "collectives",
        "ras",
        "logs",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield one finding for all suspects of this code."""
        found = list(tell_suspects(self, scene, policy))
        # Where recorded ops tell how ranks parted, words and stacks about the same say less.
        has_parted = scene.divergences.first is not None
        cases = [
            one for one in scene.story.of(self.code) if not (has_parted and one.tier == PARTED)
        ]
        if found and cases and names_more(cases[0], found[0]):
            yield tell_both(self, cases[0], found[0])
        else:
            yield from found or (tell_case(self, case) for case in cases)


def tell_suspects(rule: Rule, scene: Scene, policy: Policy) -> Iterator[Finding]:
    """Yield one finding for all suspects of the code of a rule."""
    mine = [item for item in scene.suspects.explained if item.code == rule.code]
    if not mine:
        return
    first = mine[0]
    ranks = [item.rank for item in mine]
    blamed = [item.rank for item in mine if item.is_blamed]
    who = name_ranks(ranks)
    text = first.text if len(mine) == 1 else _pluralise(first.text)
    waiting = sorted(scene.waits.waiting - set(ranks))
    whom = "it" if len(mine) == 1 else "them"
    tail = f"; {name_ranks(waiting)} {_verb(waiting)} for {whom}" if waiting else ""
    where = [place for item in mine for place in _make_where(item, policy.places_per_rank)]
    yield rule.make_finding(
        f"{who} {text}{tail}",
        max((item.confidence for item in mine), key=list(Confidence).index),
        Blame(
            ranks=blamed,
            nodes=_list_nodes(scene, blamed),
            groups=_name_groups(scene, ranks),
            victims=sorted({*waiting, *ranks} - set(blamed)),
            where=where,
        ),
        because=[*(cite for item in mine for cite in item.because), *_cite_waits(scene, ranks)],
        details=first.details,
        measures=first.measures,
    )


class DivergenceRule(Rule):
    """A rule about ranks whose ops differ from those of the other members of a group."""

    needs: ClassVar[tuple[str, ...]] = ("collectives", "logs", "stacks")
    loss_effect = LossEffect.PARTED
    shows_ops = True
    compares_ops = True
    way: ClassVar[DivergenceKind]

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when the ranks diverged in the way of this rule."""
        divergence = scene.divergences.first
        if divergence is None:
            # torch compares calls itself when it is asked to, and says so in the log. Of splits
            # that do not fit (H108), it and the backend can only say that sizes differ.
            if scene.divergences.split_mismatch is None:
                yield from (tell_case(self, case) for case in scene.story.of(self.code))
            yield from tell_parting(self, scene, policy)
            return
        if divergence.way is not self.way or scene.suspects.explained:
            return
        frames = self.find_place(scene, divergence)
        culprits = divergence.culprits
        members = divergence.alignment.group.members
        where = [
            place
            for rank in culprits
            for place in make_places(rank, frames.get(rank, ()), policy.places_per_rank)
        ]
        describe = describe_tie if divergence.is_tied else self.describe
        finding = self.make_finding(
            describe(scene, divergence),
            divergence.confidence,
            Blame(
                ranks=culprits,
                groups=[divergence.alignment.group.label],
                victims=sorted(members - set(culprits)),
                where=where,
            ),
            because=[*cite_divergence(scene, divergence), *_cite_others(scene, divergence)],
            details=self.detail(scene, divergence),
        )
        yield tell_threads(scene, finding, divergence.alignment.group.label)

    def find_place(self, scene: Scene, divergence: Divergence) -> dict[int, tuple[Frame, ...]]:
        """Return the frames to name for each culprit: its op where the paths part."""
        return {
            rank: scene.ops.get_site(divergence.rows[rank])
            for rank in divergence.culprits
            if rank in divergence.rows
        }

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        raise NotImplementedError

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        return {
            "group": divergence.alignment.group.label,
            "sequence": divergence.seq,
            "ops": {str(rank): scene.ops.name_op(row) for rank, row in divergence.rows.items()},
        }


_OF_PARTING = {codes.GROUP_ORDER_CYCLE, codes.SKIPPED_COLLECTIVE, codes.EXTRA_COLLECTIVE}


def _tells_parting(case: Case) -> bool:
    """Return whether a case names the ranks that part, and why, so that it is likely."""
    is_sure = case.confidence is not Confidence.POSSIBLE
    return case.code in _OF_PARTING and bool(case.ranks) and is_sure


def tell_parting(rule: Rule, scene: Scene, policy: Policy) -> Iterator[Finding]:
    """Yield what stacks alone tell of where ranks part, when it is of the code of a rule."""
    parting = scene.suspects.parting
    if parting is None or parting.code != rule.code:
        return
    if parting.confidence is Confidence.POSSIBLE and any(map(_tells_parting, scene.story.roots)):
        return  # groups or counts that the job printed tell more than where its ranks are
    culprits = list(parting.culprits)
    first = [rank for rank in parting.places if rank in culprits]
    where = [
        place
        for rank in (*first, *(rank for rank in parting.places if rank not in culprits))
        for place in make_places(rank, parting.places[rank], policy.places_per_rank)
    ]
    finding = rule.make_finding(
        parting.describe(),
        parting.confidence,
        Blame(ranks=culprits, victims=sorted(scene.ranks.all), where=where),
        because=[
            scene.stacks.cite(side.ranks[0], side.describe()) for side in parting.sides[:_MAX_NAMED]
        ],
        details={
            "sides": [
                {"ranks": format_ranks(set(side.ranks)), "op": side.op} for side in parting.sides
            ]
        },
    )
    more = [] if scene.ops.recorded_ranks else [_RECORD]
    yield replace(finding, remedies=[*finding.remedies, *more])


def place_waits(scene: Scene, policy: Policy, waits: Sequence[Wait]) -> list[Place]:
    """Return the line of each rank that waits; callers too while there are few ranks."""
    first: dict[int, Wait] = {}
    for wait in waits:
        first.setdefault(wait.rank, wait)
    limit = policy.places_per_rank if len(first) <= _MAX_NAMED else 1
    return [
        place
        for rank, wait in first.items()
        for place in make_places(rank, scene.ops.get_wait_site(wait), limit)
    ]


def describe_tie(scene: Scene, divergence: Divergence) -> str:
    """Write the summary for two sides of which either may be wrong."""
    sides: dict[str, list[int]] = {}
    for rank in divergence.culprits:
        if rank in divergence.rows:
            text = (
                f"{name_ops(scene, divergence, [rank])} in {name_place(scene, divergence, [rank])}"
                f"{_name_root(divergence, rank)}"
            )
            sides.setdefault(text, []).append(rank)
    calls = ", ".join(f"{name_ranks(ranks)} at {text}" for text, ranks in sides.items())
    label = divergence.alignment.group.label
    return f"the ranks of group {label} part: {calls}; which side is wrong cannot be told"


def _name_root(divergence: Divergence, rank: int) -> str:
    if divergence.clash != Clash.ROOT or not divergence.by_form:
        return ""
    return f" with root {divergence.alignment.form_of(divergence.rows[rank]).root}"


def name_ops(scene: Scene, divergence: Divergence, ranks: Sequence[int]) -> str:
    """Name the ops that ranks made at the divergence, e.g. ``all_reduce``."""
    rows = divergence.rows
    return " or ".join(sorted({scene.ops.name_op(rows[rank]) for rank in ranks if rank in rows}))


def name_place(scene: Scene, divergence: Divergence, ranks: Sequence[int]) -> str:
    """Name the call site of the first of some ranks at the divergence."""
    rank = next((rank for rank in ranks if rank in divergence.rows), None)
    frames = scene.ops.get_site(divergence.rows[rank]) if rank is not None else ()
    if not frames:
        return NO_FRAMES
    return describe_place(frames[0])


def cite_divergence(scene: Scene, divergence: Divergence) -> list[Citation]:
    """Cite the op of a culprit and of another member, where they part and where they clash."""
    cites = []
    label = divergence.alignment.group.label
    for rows, seq in (
        (divergence.rows, divergence.seq),
        (divergence.hard_rows, divergence.hard_seq),
    ):
        for ranks in (divergence.culprits, divergence.others):
            rank = next((rank for rank in ranks if rank in rows), None)
            if rank is not None:
                op = scene.ops.name_op(rows[rank])
                text = f"rank {rank} calls {op} {seq} of group {label}"
                site = scene.ops.get_site(rows[rank])
                if site:
                    text += f" in {describe_place(site[0])}"
                cites.append(scene.ops.cite_row(rows[rank], text))
        if divergence.hard_seq == divergence.seq:
            break
    return cites


def _cite_others(scene: Scene, divergence: Divergence) -> list[Citation]:
    """Cite what other members wait in, where that is no op of the group in which they part."""
    if divergence.is_tied or any(rank in divergence.rows for rank in divergence.others):
        return []
    return _cite_waits(scene, divergence.culprits)


def _list_nodes(scene: Scene, ranks: Sequence[int]) -> list[str]:
    """Return the hosts and pods of processes whose ranks are not known: they are all there is."""
    nodes = scene.evidence.topology.node_by_rank
    return sorted({nodes[rank] for rank in ranks if is_process(rank) and rank in nodes})


def _make_where(item: Suspicion, limit: int) -> list[Place]:
    places = make_places(item.rank, item.frames, limit)
    more = [Place(item.rank, frame.file, frame.line, frame.function) for frame in item.more_frames]
    # A second site is part of the answer; a caller is not.
    return [*places[: max(1, limit - len(more))], *more] if more else places


def _cite_waits(scene: Scene, ranks: Sequence[int]) -> list[Citation]:
    blamed = set(ranks)
    waits = [wait for wait in scene.waits.pending if not blamed.isdisjoint(wait.targets)]
    return [scene.ops.cite_wait(wait) for wait in waits[:_MAX_NAMED]]


def _name_groups(scene: Scene, ranks: Sequence[int]) -> list[str]:
    blamed = set(ranks)
    stalls = [
        scene.waits.device_stalls[rank] for rank in ranks if rank in scene.waits.device_stalls
    ]
    # Where a device does not finish an op is told before who waits for it.
    waits = stalls or [wait for wait in scene.waits.pending if not blamed.isdisjoint(wait.targets)]
    return sorted({wait.group.label for wait in waits})


def _verb(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _pluralise(text: str) -> str:
    first, _, rest = text.partition(" ")
    plural = {"is": "are", "has": "have", "runs": "run", "waits": "wait"}
    rest = rest.replace(" its ", " their ").replace("itself,", "themselves,", 1)
    return f"{plural.get(first, first)} {rest}"
