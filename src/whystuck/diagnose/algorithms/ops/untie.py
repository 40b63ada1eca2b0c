"""Two sides of one size that part: the one of which a rank broke its habit is the odd one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from whystuck.diagnose.algorithms.ops.call_patterns import KNOWN, CallPattern
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Collectives


def untie(table: Collectives, parted: Divergence, habits: Mapping[int, CallPattern]) -> Divergence:
    """Name one side of a tie, where its ranks alone broke their habits there.

    With several groups, a rank that takes another group for its call meets a peer that is well.

    Args:
        table: All ops.
        parted: Where ranks part.
        habits: The habits by rank.

    Returns:
        The same where it is no tie, or where the ranks of both sides did what they always do, or
        something new.
    """
    sides = _split(table, parted)
    if not parted.is_tied or not all(rank in habits for rank in parted.culprits):
        return parted
    broken = {
        rank for rank in parted.culprits if _is_broken(table, habits[rank], parted.rows.get(rank))
    }
    kept = {rank for rank in parted.culprits if int(habits[rank].states[-1]) == KNOWN}
    if tuple(sorted(broken)) not in sides or broken | kept != set(parted.culprits):
        return parted
    others = tuple(rank for rank in parted.culprits if rank not in broken)
    left_out = _was_to_come(table, parted, habits[min(broken)], others)
    return replace(
        parted,
        way=DivergenceKind.SKIPPED if left_out else DivergenceKind.EXTRA,
        culprits=tuple(sorted(broken)),
        others=others,
        is_tied=False,
        confidence=Confidence.LIKELY,
    )


def _split(table: Collectives, parted: Divergence) -> set[tuple[int, ...]]:
    """Return the ranks that are at one call."""
    sides: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(set(parted.culprits) & set(parted.rows)):
        row = parted.rows[rank]
        sides.setdefault((int(table.site[row]), int(table.form[row])), []).append(rank)
    return {tuple(ranks) for ranks in sides.values()}


def _is_broken(table: Collectives, habit: CallPattern, row: int | None) -> bool:
    """Tell whether a rank broke its habit at an op, in a line that it knew.

    A line that is new to it may be where all ranks go on, as behind a loop.
    """
    if row is None or row - habit.start not in habit.breaks:
        return False
    return bool((table.site[habit.start : row] == table.site[row]).any())


def _was_to_come(
    table: Collectives, parted: Divergence, habit: CallPattern, others: tuple[int, ...]
) -> bool:
    """Tell whether what the others are at is what a rank was to call, in their group."""
    expected = habit.start + habit.find_before(parted.rows[habit.rank] - habit.start)
    at = [parted.rows[rank] for rank in others if rank in parted.rows]
    return any(
        table.group[row] == table.group[expected] and table.site[row] == table.site[expected]
        for row in at
    )
