"""Where ranks part whose ops nobody recorded: all wait, in calls that do not belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.mesh import find_mesh
from whystuck.diagnose.algorithms.source.branches import (
    Relation,
    has_both_orders,
    is_in_loop,
    may_be_past,
    relate_sites,
)
from whystuck.diagnose.algorithms.source.calls import (
    SourceCall,
    find_lone_calls,
    is_skippable,
    name_group,
    uses_transfers,
)
from whystuck.diagnose.algorithms.stacks.frames import describe_place, select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import Doing, is_gathering_state, name_call
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.stack_sides import Look, Parting, Side, judge_lone_line
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MANY = 3
_MAX_SIDES = 4
# So many ranks of one side are compared with the others.
_MAX_COMPARED = 64
_LEAVING = {Doing.TEARDOWN, Doing.EXITING}
_PAST = {Relation.A_AFTER_LOOP, Relation.A_AFTER_INNER_LOOP}
_BEFORE = {Relation.B_AFTER_LOOP, Relation.B_AFTER_INNER_LOOP}
# Calls that hardly any step makes: beside ops of a step, they are what is too many.
_RARE = {"barrier", "monitored_barrier", "new_group", "init_device_mesh"}

# Calls that all ranks of the job have to make.
_ON_ALL = {"new_group", "init_device_mesh", "init_process_group"}
_GIVEN_GROUP = re.compile(r"\bprocess_group\s*=|\bdevice_mesh\s*=|\bmesh\s*=")


def find_stack_parting(facts: Facts) -> Parting | None:
    """Find where ranks part, from their stacks alone.

    Args:
        facts: The evidence, without any record of ops.

    Returns:
        None while any rank may be on its way, or all wait together.
    """
    if not _can_judge(facts):
        return None
    sides = _list_sides(facts)
    if len(sides) < _PAIR:
        return None
    mesh = find_mesh(facts.evidence.processes, sorted(facts.ranks.all))
    look = Look(facts, sides, mesh)
    for judge in (_judge_lone_call, _judge_past_loop, _judge_orders, _judge_calls):
        found = judge(look)
        if found is not None:
            return found
    return None


def _can_judge(facts: Facts) -> bool:
    """Tell whether all ranks are known to wait for others, and none in a send or receive."""
    if (
        facts.ops.recorded_ranks
        or facts.waits.pending
        or not facts.movement.is_stalled
        or facts.exits.dead
    ):
        return False
    if facts.evidence.incident.kind == "snapshot" and not facts.movement.is_still:
        return False
    leaving = {rank for rank, at in facts.stacks.positions.items() if at.doing in _LEAVING}
    if (
        facts.waits.waiting_by_stack | leaving != facts.ranks.all
        or facts.waits.in_transfer_by_stack
    ):
        return False
    # Fewer that leave are reported by what they do.
    return not leaving or 2 * len(leaving) > len(facts.ranks.all) > len(leaving)


def _list_sides(facts: Facts) -> tuple[Side, ...]:
    """Put ranks together that wait at the same lines, the fewest first."""
    ranks_at: dict[tuple[Frame, ...], list[int]] = {}
    for rank, position in sorted(facts.stacks.positions.items()):
        ranks_at.setdefault(select_user_frames(position.frames), []).append(rank)
    sides = [
        Side(tuple(ranks), name_call(facts.stacks.positions[ranks[0]].frames), site)
        for site, ranks in ranks_at.items()
    ]
    return tuple(sorted(sides, key=lambda side: (len(side.ranks), side.ranks)))


def _judge_lone_call(look: Look) -> Parting | None:
    """Look for a collective that the source lets one side alone call, by its rank."""
    is_numbered = all(gap.what != "rank numbers" for gap in look.facts.evidence.gaps)
    if look.relation is Relation.EXCLUSIVE or not is_numbered:
        return None
    # Most ranks may be right to call what the others do not.
    sides = (look.few,) if look.has_majority else look.sides
    found = [item for side in sides for item in _list_lone_calls(look, side)]
    if not found:
        return judge_lone_line(look)
    if len({side.ranks for side, _, _ in found}) != 1:
        return None
    side, rank, call = _choose(found)
    culprits = tuple(sorted({one for _, one, other in found if other == call} | {rank}))
    others = look.many if side is look.few else look.few
    return Parting(
        codes.EXTRA_COLLECTIVE,
        look.sure if look.has_majority else Confidence.POSSIBLE,
        f"{name_ranks(culprits)} alone {_verb(culprits, 'calls', 'call')} {call.op} in "
        f"{describe_place(call.place)}, by a condition on the rank",
        look.sides,
        culprits,
        dict.fromkeys(culprits, _join_places(call, side)) | {others.ranks[0]: others.site[:1]},
    )


def _list_lone_calls(look: Look, side: Side) -> Iterator[tuple[Side, int, SourceCall]]:
    """Yield calls on a group of all ranks that the source lets ranks of one side alone make.

    Those of the other ranks of the side that the source lets make the call are with them.
    """
    sources = look.facts.evidence.sources
    others = [other.ranks[0] for other in look.sides if other is not side]
    for rank in side.ranks[:_MAX_COMPARED]:
        for frame in side.site:
            for call in find_lone_calls(frame, rank, others, sources):
                is_on_all = not call.has_group or look.mesh.is_uniform
                if is_on_all and may_be_past(frame, call.path[0].line, sources):
                    yield side, rank, call


def _choose(found: Sequence[tuple[Side, int, SourceCall]]) -> tuple[Side, int, SourceCall]:
    """Choose the call that the ranks are in, else the one that is nearest before their lines."""

    def order(item: tuple[Side, int, SourceCall]) -> tuple[bool, int]:
        side, _, call = item
        ways = [
            frame.line - call.place.line
            for frame in side.site
            if frame.file == call.place.file and frame.line >= call.place.line
        ]
        return not ways, min(ways, default=0)

    return min(found, key=order)


def _join_places(call: SourceCall, side: Side) -> tuple[Frame, ...]:
    """Return the line of a call, where its rank waits now, and what led to the call."""
    frames = (call.place, *side.site[:1], *reversed(call.path[:-1]))
    return tuple(dict.fromkeys(frames))


def _judge_past_loop(look: Look) -> Parting | None:
    """Look for ranks that are past the loop which the others are still in."""
    sources, sides = look.facts.evidence.sources, look.sides
    look = _join_inside(look)
    relation = relate_sites(look.few.site, look.many.site, sources, with_rank=False)
    if len(look.sides) != _PAIR or relation not in _PAST | _BEFORE:
        return None
    if _is_one_group(look) is False:
        return None
    past, inside = (look.few, look.many) if relation in _PAST else (look.many, look.few)
    is_inner = relation in {Relation.A_AFTER_INNER_LOOP, Relation.B_AFTER_INNER_LOOP}
    if not is_in_loop(inside.site, sources, over_batches=is_inner):
        return None
    if look.has_majority and past is look.many:
        text = (
            f"{name_ranks(past.ranks)} left the loop early, or {name_ranks(inside.ranks)} made a "
            "call more than the others in it"
        )
        places = {past.ranks[0]: past.site, inside.ranks[0]: inside.site}
        return Parting(codes.LEFT_EARLY, Confidence.POSSIBLE, text, sides, (), places)
    return Parting(
        codes.LEFT_EARLY,
        look.sure if look.has_majority else Confidence.POSSIBLE,
        f"{name_ranks(past.ranks)} left the loop that {name_ranks(inside.ranks)} "
        f"{_verb(inside.ranks, 'is', 'are')} still in",
        sides,
        past.ranks,
        dict.fromkeys(past.ranks, (*past.site[:2], *inside.site[:1])),
    )


def _join_inside(look: Look) -> Look:
    """Put all sides together that are in a loop, however far, that one side alone is past."""
    sources = look.facts.evidence.sources
    for past in look.sides:
        others = [side for side in look.sides if side is not past]
        relations = {
            relate_sites(past.site, side.site, sources, with_rank=False) for side in others
        }
        if len(others) > 1 and relations <= _PAST:
            ranks = tuple(sorted(rank for side in others for rank in side.ranks))
            inside = replace(others[-1], ranks=ranks)
            return replace(
                look, sides=tuple(sorted((past, inside), key=lambda one: len(one.ranks)))
            )
    return look


def _judge_orders(look: Look) -> Parting | None:
    """Judge calls on two groups: each side waits in one for ranks that are in the other."""
    if _is_one_group(look) is not False:
        return None
    ranks = tuple(sorted(rank for side in look.sides for rank in side.ranks))
    places = {rank: side.site for side in look.sides for rank in side.ranks}
    sources = look.facts.evidence.sources
    if len(look.sides) == _PAIR and has_both_orders(look.few.site, look.many.site, sources):
        text = "the two branches use the groups in opposite orders"
        return Parting(codes.GROUP_ORDER_CYCLE, look.sure, text, look.sides, ranks, places)
    skipped = _judge_other_group(look)
    if skipped is not None:
        return skipped
    if look.mesh.is_uniform and look.blames_few and _went_past(look.few, look.many, sources):
        return _accuse(look, codes.SKIPPED_COLLECTIVE)
    text = (
        "they wait for each other in calls on different groups; one side uses them in another "
        "order, skipped a call or made one more"
    )
    firsts = {side.ranks[0]: side.site for side in look.sides}
    return Parting(codes.GROUP_ORDER_CYCLE, Confidence.POSSIBLE, text, look.sides, (), firsts)


def _judge_other_group(look: Look) -> Parting | None:
    """Judge ranks that wait in a group of few for members that are in a call on all ranks.

    Where nothing but an early return leads past the call of the group, they went past it.
    """
    few, many = look.few, look.many
    sources = look.facts.evidence.sources
    is_on_all = [_name_group(look, side) == "" for side in (few, many)]
    members = look.mesh.find_other_members(few.ranks[0])
    missing = members - set(few.ranks)
    if len(look.sides) != _PAIR or is_on_all != [False, True] or not missing <= set(many.ranks):
        return None
    if not missing or not members >= set(few.ranks) or not _went_past(many, few, sources):
        return None
    culprits = tuple(sorted(missing))
    return Parting(
        codes.SKIPPED_COLLECTIVE,
        Confidence.POSSIBLE,
        f"{name_ranks(culprits)}, of the same group as {name_ranks(few.ranks)}, may have skipped "
        f"{few.op}",
        look.sides,
        culprits,
        dict.fromkeys(culprits, (*few.site[:1], *many.site)) | {few.ranks[0]: few.site[:1]},
    )


def _judge_calls(look: Look) -> Parting | None:
    """Judge two calls that cannot meet: by how their lines relate, and by who is alone."""
    sources = look.facts.evidence.sources
    is_one = _is_one_group(look) is True and not (
        "wait" in {look.few.op, look.many.op} and uses_transfers(sources)
    )
    if is_one and look.blames_few:
        return _accuse(look, _name_way(look))
    # All others are at the barrier that ends a save, or a round of it.
    if look.many.op == "barrier" and look.blames_few and look.has_majority and _gathers_alone(look):
        return _accuse(look, codes.EXTRA_COLLECTIVE)
    if _is_alone_ahead(look):
        # Who is ahead in a barrier may have left something out as well.
        return _accuse(look, codes.EXTRA_COLLECTIVE if _gathers_alone(look) else codes.OP_MISMATCH)
    if look.gathers_objects_alone:
        return _accuse(look, codes.OP_MISMATCH)
    places = {side.ranks[0]: side.site for side in look.sides[:_MAX_SIDES]}
    text = "these calls do not meet, and which side is wrong cannot be told"
    if "new_group" in {side.op for side in look.sides}:
        text = "all ranks of the job have to call new_group, members of the group or not"
    return Parting(codes.OP_MISMATCH, Confidence.POSSIBLE, text, look.sides, (), places)


def _is_alone_ahead(look: Look) -> bool:
    """Tell whether one rank is further on in the function in which it parts from all others.

    That all others wait in one call is due to that rank, whatever their groups are: who waits in a
    group without it would have gone on. Where they are ahead, it may have been in the loop again.
    """
    few, many = look.few, look.many
    is_alone = len(few.ranks) == 1 and len(many.ranks) >= _MANY and look.has_majority
    if not is_alone or look.facts.evidence.processes or not look.blames_few:
        return False
    pairs = zip(reversed(few.site), reversed(many.site), strict=False)
    for ours, theirs in pairs:
        if (ours.file, ours.function) != (theirs.file, theirs.function):
            return False
        if ours.line != theirs.line:
            return ours.line > theirs.line > 0
    return False


def _accuse(look: Look, code: str) -> Parting:
    """Name the few: all ranks have made as many calls, and these met nobody in the last one."""
    few, many = look.few, look.many
    who = name_ranks(few.ranks)
    text = {
        codes.SKIPPED_COLLECTIVE: f"{who} may have skipped that call of the others",
        codes.EXTRA_COLLECTIVE: (
            f"{who} may have made a call more than the others, this one or one before it"
        ),
        codes.OP_MISMATCH: f"{who} went another way than the others",
    }[code]
    frames = (*many.site[:1], *few.site) if code == codes.SKIPPED_COLLECTIVE else few.site
    places = dict.fromkeys(few.ranks, frames) | {many.ranks[0]: many.site[:1]}
    return Parting(code, Confidence.POSSIBLE, text, look.sides, few.ranks, places)


def _name_way(look: Look) -> str:
    """Name what the few did, by the source."""
    few, many, relation = look.few, look.many, look.relation
    sources = look.facts.evidence.sources
    if relation is Relation.EXCLUSIVE:
        return codes.OP_MISMATCH
    if relation in {Relation.A_EXTRA, Relation.A_EXTRA_BY_RANK}:
        return codes.EXTRA_COLLECTIVE
    if relation is Relation.B_EXTRA or _went_past(few, many, sources):
        return codes.SKIPPED_COLLECTIVE
    return codes.EXTRA_COLLECTIVE if _is_rare(look) else codes.OP_MISMATCH


def _is_rare(look: Look) -> bool:
    """Return whether the few are in a call that hardly any step makes, and the others are not."""
    return (look.few.op in _RARE and look.many.op not in _RARE) or _gathers_alone(look)


def _gathers_alone(look: Look) -> bool:
    """Return whether the few gather the state of a sharded model, for which the others do not come.

    Where these had not come as far, the few have gone past what they wait in.
    """
    frames = [look.facts.stacks.positions[side.ranks[0]].frames for side in (look.few, look.many)]
    return [is_gathering_state(one) for one in frames] == [True, False]


def _went_past(gone: Side, there: Side, sources: Mapping[str, str]) -> bool:
    """Tell whether an early return may have led one side past the call that the other is in."""
    deeper_gone, deeper_there = _cut_shared(gone.site, there.site)
    return is_skippable(deeper_there, sources) and not is_skippable(deeper_gone, sources)


def _cut_shared(
    site_a: tuple[Frame, ...], site_b: tuple[Frame, ...]
) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
    """Return the frames of two sites below the function in which they part."""
    shared = 0
    for frame_a, frame_b in zip(reversed(site_a), reversed(site_b), strict=False):
        if (frame_a.file, frame_a.function) != (frame_b.file, frame_b.function):
            break
        shared += 1
    return site_a[: len(site_a) - shared], site_b[: len(site_b) - shared]


def _is_one_group(look: Look) -> bool | None:
    """Tell whether all sides wait in calls on one group; None when it cannot be told."""
    if look.mesh.is_single:
        return True
    groups = {_name_group(look, side) for side in look.sides}
    if len(groups - {None}) > 1:
        return False
    # One name may stand for another group on each rank.
    return True if groups == {""} else None


def _name_group(look: Look, side: Side) -> str | None:
    """Name the group of a call by its text; empty for the default one, None when unknown."""
    sources = look.facts.evidence.sources
    if side.op in _ON_ALL:
        return ""
    if side.op == "backward":
        # DDP reduces on the default group, when it is given no other.
        is_given = any(_GIVEN_GROUP.search(text) for text in sources.values())
        return None if is_given or not sources else ""
    return name_group(side.site[0], sources) if side.site else None


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several
