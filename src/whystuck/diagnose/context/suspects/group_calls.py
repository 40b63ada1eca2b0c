"""Ranks that set up groups in different numbers or orders, by what their probes counted.

torch numbers groups in the order of the calls: after one that some ranks left out, the next group
has another name on them, and ranks wait at one line for a group that nobody else makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.branches import may_be_past
from whystuck.diagnose.algorithms.source.calls import find_lone_calls
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.stack_sides import Parting, Side
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

SETS_UP = {"new_group", "init_device_mesh"}
_ALL = "all ranks of the job have to call new_group, members of the group or not"


def find_uneven_counts(facts: Facts, sides: Mapping[int, Side]) -> Parting | None:
    """Find ranks that began to make fewer groups than others, or more, while all wait for groups.

    Args:
        facts: The evidence.
        sides: The call of each rank that sets up a group.

    Returns:
        None where all made as many, or the counts of some are not known.
    """
    calls = {beat.rank: beat.group_calls for beat in facts.evidence.beats if beat.group_calls >= 0}
    begun = {beat.rank for beat in facts.evidence.beats if beat.begun_groups}
    # Where the groups themselves are known, and agree, some ranks are only not as far.
    if not set(sides) <= set(calls) or set(sides) <= begun:
        return None
    by_count: dict[int, list[int]] = {}
    for rank in sorted(sides):
        by_count.setdefault(calls[rank], []).append(rank)
    if len(by_count) < 2:  # noqa: PLR2004 - two sides
        return None
    counts = sorted(by_count)
    behind, ahead = by_count[counts[0]], by_count[counts[-1]]
    culprits: tuple[int, ...] = ()
    code = codes.SKIPPED_COLLECTIVE
    if 2 * len(behind) < len(sides):
        culprits = tuple(behind)
    elif 2 * len(ahead) < len(sides):
        culprits, code = tuple(ahead), codes.EXTRA_COLLECTIVE
    numbers = [f"{name_ranks(by_count[one])} {one}" for one in counts[1:]]
    first = f"{name_ranks(behind)} began to make {counts[0]} groups, {', '.join(numbers)}"
    places = {
        ranks[0]: (*_find_lone(facts, sides, ranks, others), *sides[ranks[0]].site)
        for ranks, others in ((behind, ahead), (ahead, behind))
    }
    return Parting(
        code,
        Confidence.LIKELY if culprits else Confidence.POSSIBLE,
        f"{first}, the default one included; {_ALL}",
        join_sides(sides),
        culprits,
        places | {rank: sides[rank].site for rank in culprits if rank not in places},
    )


def find_other_order(facts: Facts, sides: Mapping[int, Side]) -> Parting | None:
    """Find ranks that made another group than the others, as the same one by its number.

    Args:
        facts: The evidence.
        sides: What each rank waits in, of which some set up groups.
    """
    begun = {beat.rank: dict(beat.begun_groups) for beat in facts.evidence.beats}
    if not all(begun.get(rank) for rank in sides):
        return None
    numbers = sorted(set[int]().union(*(begun[rank] for rank in sides)))
    for number in numbers:
        by_members: dict[str, list[int]] = {}
        for rank in sorted(sides):
            if number in begun[rank]:
                by_members.setdefault(begun[rank][number], []).append(rank)
        if len(by_members) > 1:
            parting = _judge_order(sides, begun, number, by_members)
            return _show_lone(facts, sides, parting, by_members)
    return None


def _judge_order(
    sides: Mapping[int, Side],
    begun: Mapping[int, Mapping[int, str]],
    number: int,
    by_members: Mapping[str, list[int]],
) -> Parting:
    """Name those who made another group than most; what the next ones are tells the way."""
    (few_made, few), *_, (most_made, most) = sorted(
        by_members.items(), key=lambda item: (len(item[1]), item[1])
    )
    is_odd = 2 * len(most) > len(sides) and len(by_members) == 2  # noqa: PLR2004 - two sides
    told = ", ".join(
        f"{name_ranks(ranks)} {'makes' if len(ranks) == 1 else 'make'} {_name_members(members)}"
        for members, ranks in sorted(by_members.items(), key=lambda item: len(item[1]))[:4]
    )
    # Who is still in this call may make the others' one next: then it is the order that differs.
    is_open = any(
        number + 1 not in begun[rank] and sides[rank].op in SETS_UP for rank in (*few, *most)
    )
    has_skipped = any(begun[rank].get(number + 1) == few_made for rank in most)
    has_added = any(begun[rank].get(number + 1) == most_made for rank in few)
    code = codes.OP_MISMATCH
    if has_skipped != has_added and not is_open:
        code = codes.SKIPPED_COLLECTIVE if has_skipped else codes.EXTRA_COLLECTIVE
    return Parting(
        code,
        Confidence.LIKELY if is_odd else Confidence.POSSIBLE,
        f"as group {number} of the job, {told}; {_ALL}, in one order",
        join_sides(sides),
        tuple(few) if is_odd else (),
        {ranks[0]: sides[ranks[0]].site for ranks in by_members.values()}
        | ({rank: sides[rank].site for rank in few} if is_odd else {}),
    )


def _show_lone(
    facts: Facts,
    sides: Mapping[int, Side],
    parting: Parting,
    by_members: Mapping[str, list[int]],
) -> Parting:
    """Put the line of a call that the source lets one side alone make before where it waits."""
    places = dict(parting.places)
    for ranks in by_members.values():
        others = [rank for rank in sides if rank not in ranks]
        lone = _find_lone(facts, sides, ranks, others)
        places[ranks[0]] = (*lone, *places[ranks[0]])
    return replace(parting, places=places)


def _name_members(members: str) -> str:
    return f"one of ranks {members:.60}" if members else "one of all ranks"


def join_sides(sides: Mapping[int, Side]) -> tuple[Side, ...]:
    """Put ranks together that wait in one call, the fewest first."""
    ranks: dict[tuple[str, tuple[Frame, ...]], list[int]] = {}
    for rank, side in sorted(sides.items()):
        ranks.setdefault((side.op, side.site), []).append(rank)
    joined = [Side(tuple(here), op, site) for (op, site), here in ranks.items()]
    return tuple(sorted(joined, key=lambda one: (len(one.ranks), one.ranks)))


def _find_lone(
    facts: Facts, sides: Mapping[int, Side], ranks: list[int], others: list[int]
) -> tuple[Frame, ...]:
    """Return the line of a call that sets up a group and that the source lets ranks alone make."""
    sources = facts.evidence.sources
    found = [
        call.place
        for frame in sides[ranks[0]].site
        for call in find_lone_calls(frame, ranks[0], others[:1], sources)
        if call.op in SETS_UP and may_be_past(frame, call.path[0].line, sources)
    ]
    return tuple(found[:1])
