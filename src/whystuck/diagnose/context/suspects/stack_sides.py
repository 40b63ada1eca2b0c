"""Ranks that wait at different lines, by their stacks alone, and what a parting of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.mesh import Mesh
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.guards import is_lone_line
from whystuck.diagnose.algorithms.stacks.frames import describe_place, name_function
from whystuck.diagnose.context.facts import Facts
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MANY = 3
_MAX_SIDES = 4
# So many of the others are asked for a condition on the rank.
_MAX_COMPARED = 64
# Calls that are over for some ranks while others still wait in them.
_ONE_SIDED = {
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "scatter",
    "scatter_object_list",
}
# Calls that gather Python objects, of which all ranks tell their sizes first.
_OF_OBJECTS = {"gather_object", "all_gather_object"}
# What some of these call that is over on all ranks at once.
_INSIDE_ON_ALL = {"all_gather", "all_gather_into_tensor", "all_reduce", "barrier"}


@dataclass(frozen=True)
class Side:
    """Ranks that wait in one call; ``site`` holds the user's frames, innermost first."""

    ranks: tuple[int, ...]
    op: str
    site: tuple[Frame, ...]

    def describe(self) -> str:
        """Write who waits, in what and where."""
        verb = "waits" if len(self.ranks) == 1 else "wait"
        place = f" in {describe_place(self.site[0])}" if self.site else ""
        return f"{name_ranks(self.ranks)} {verb} in {self.op}{place}"


@dataclass(frozen=True)
class Parting:
    """What stacks alone tell of ranks that wait for each other.

    ``culprits`` is empty where either side may be wrong. ``places`` holds the frames to name for
    ranks, ``sides`` all that wait, the fewest first. ``text`` completes the description of them.
    """

    code: str
    confidence: Confidence
    text: str
    sides: tuple[Side, ...]
    culprits: tuple[int, ...] = ()
    places: dict[int, tuple[Frame, ...]] = field(default_factory=dict)

    def describe(self) -> str:
        """Write the summary."""
        sides = ", ".join(side.describe() for side in self.sides[:_MAX_SIDES])
        return f"{sides}: {self.text}"


@dataclass(frozen=True)
class Look:
    """All sides of one job, with what helps to judge them."""

    facts: Facts
    sides: tuple[Side, ...]
    mesh: Mesh

    @property
    def few(self) -> Side:
        """The smaller side."""
        return self.sides[0]

    @property
    def many(self) -> Side:
        """The larger one."""
        return self.sides[-1]

    @property
    def has_majority(self) -> bool:
        """Whether most ranks wait together, and all others elsewhere together."""
        total = sum(len(side.ranks) for side in self.sides)
        return len(self.sides) == _PAIR and 2 * len(self.many.ranks) > total

    @property
    def blames_few(self) -> bool:
        """Whether few beside most are at fault, as long as all calls are on groups of all.

        Who waits alone in a call that is over for the others may wait for one that skipped it.
        """
        is_left_behind = self._is_one_sided and self.relation is not Relation.EXCLUSIVE
        return self.has_majority and not is_left_behind

    @property
    def _is_one_sided(self) -> bool:
        """Whether the call of the smaller side may be over for others that made it.

        What gathers objects gathers their sizes on all ranks first: nobody is past that alone.
        """
        frames = self.facts.stacks.positions[self.few.ranks[0]].frames
        is_on_all = bool(frames) and name_function(frames[0]) in _INSIDE_ON_ALL
        return self.few.op in _ONE_SIDED and not is_on_all

    @property
    def gathers_objects_alone(self) -> bool:
        """Whether one rank gathers objects, while all others wait for it in one call.

        They wait for that rank, whatever their group is: without it they would have gone on.
        Objects are gathered over all of a job: of so many ranks, all others are not wrong at once.
        """
        few, many = self.few, self.many
        is_alone = len(few.ranks) == 1 and len(many.ranks) >= _MANY and self.blames_few
        is_pasted = not self.facts.evidence.processes
        return is_alone and is_pasted and few.op in _OF_OBJECTS and many.op not in _OF_OBJECTS

    @property
    def relation(self) -> Relation:
        """How the line of the smaller side relates to that of the larger one."""
        return relate_sites(self.few.site, self.many.site, self.facts.evidence.sources)

    @property
    def sure(self) -> Confidence:
        """How sure what the source shows is: it takes a job that is known to stand."""
        still_s = min(
            (
                self.facts.processes.activities[rank].asleep_s
                for side in self.sides
                for rank in side.ranks
            ),
            default=0.0,
        )
        is_long = still_s >= self.facts.policy.snapshot_stall_s
        return Confidence.LIKELY if is_long else Confidence.POSSIBLE


def judge_lone_line(look: Look) -> Parting | None:
    """Look for the line of one rank to which the source lets no other come.

    It is `possible` only: the others may have to meet it by a call in another file.
    """
    few, many = look.few, look.many
    is_pair = len(look.sides) == _PAIR == len(few.ranks) + len(many.ranks)
    if len(few.ranks) != 1 or not (look.has_majority or is_pair):
        return None
    sources = look.facts.evidence.sources
    lone = _list_lone(few, many, sources)
    if is_pair and not lone:
        few, many = many, few
        lone = _list_lone(few, many, sources)
    if not lone:
        return None
    rank = few.ranks[0]
    return Parting(
        codes.EXTRA_COLLECTIVE,
        Confidence.POSSIBLE,
        f"{name_ranks(few.ranks)} alone comes to {describe_place(lone[0])}, by a condition on the "
        f"rank, and waits there in {few.op} for the others",
        look.sides,
        few.ranks,
        {rank: tuple(dict.fromkeys((*lone[:1], *few.site)))} | {many.ranks[0]: many.site[:1]},
    )


def _list_lone(few: Side, many: Side, sources: Mapping[str, str]) -> list[Frame]:
    """List the lines at which a rank is and to which no rank of the other side comes."""
    others = many.ranks[:_MAX_COMPARED]
    return [one for one in few.site if is_lone_line(one, few.ranks[0], others, sources)]
