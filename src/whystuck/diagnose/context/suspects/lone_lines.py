"""The line of one rank to which the source lets no other come, as stacks alone show it."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.guards import is_lone_line
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.context.suspects.stack_sides import Look, Parting
from whystuck.evidence.ranks import name_ranks

# So many of the others are asked.
_MAX_COMPARED = 64


def judge_lone_line(look: Look) -> Parting | None:
    """Look for the line of one rank to which the source lets no other come."""
    few, many = look.few, look.many
    if len(few.ranks) != 1 or not look.has_majority:
        return None
    rank, others = few.ranks[0], many.ranks[:_MAX_COMPARED]
    sources = look.facts.evidence.sources
    lone = [frame for frame in few.site if is_lone_line(frame, rank, others, sources)]
    if not lone:
        return None
    return Parting(
        codes.EXTRA_COLLECTIVE,
        look.sure,
        f"{name_ranks(few.ranks)} alone comes to {describe_place(lone[0])}, by a condition on the "
        f"rank, and waits there in {few.op} for the others",
        look.sides,
        few.ranks,
        {rank: tuple(dict.fromkeys((*lone[:1], *few.site)))} | {many.ranks[0]: many.site[:1]},
    )
