"""Who waits for whom: the graph whose ends are the suspects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from whystuck.diagnose.algorithms.groups import GroupOps
from whystuck.evidence.collectives import Collectives


@dataclass(frozen=True)
class Wait:
    """A rank waits in an op of a group for members that have not come."""

    rank: int
    group: GroupOps
    seq: int
    row: int
    missing: frozenset[int]


def find_waits(table: Collectives, groups: Iterable[GroupOps]) -> tuple[Wait, ...]:
    """Find the oldest op of each rank and group that is not done, and who has not come to it.

    Args:
        table: All ops.
        groups: The groups of the table.

    Returns:
        One wait for each rank and group with a pending op.
    """
    waits = []
    for group in groups:
        last_by_rank = {rank: int(table.seq[rows[-1]]) for rank, rows in group.rows_by_rank.items()}
        for rank, rows in group.rows_by_rank.items():
            pending = np.flatnonzero(~table.done[rows])
            if len(pending) == 0:
                continue
            row = int(rows[pending[0]])
            seq = int(table.seq[row])
            missing = frozenset(
                member for member in group.members if last_by_rank.get(member, -1) < seq
            )
            waits.append(Wait(rank, group, seq, row, missing))
    return tuple(waits)


def find_ends(targets_by_rank: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Find the ranks that others wait for and that wait for nobody themselves.

    Args:
        targets_by_rank: For each waiting rank, the ranks it waits for.

    Returns:
        The ends of all chains.
    """
    reached = frozenset().union(*targets_by_rank.values()) if targets_by_rank else frozenset()
    return frozenset(rank for rank in reached if not targets_by_rank.get(rank))


def find_cycle(targets_by_rank: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Find ranks that wait for each other in a ring.

    Args:
        targets_by_rank: For each waiting rank, the ranks it waits for.

    Returns:
        The shortest ring found, in order of waiting; empty when there is none.
    """
    best: tuple[int, ...] = ()
    for start in targets_by_rank:
        ring = _find_ring(start, targets_by_rank)
        if ring and (not best or len(ring) < len(best)):
            best = ring
    return best


def _find_ring(start: int, targets_by_rank: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Search breadth first for the way back to a rank."""
    came_from: dict[int, int] = {}
    queue = [start]
    for rank in queue:
        for target in sorted(targets_by_rank.get(rank, ())):
            if target == start:
                ring = [rank]
                while ring[-1] != start:
                    ring.append(came_from[ring[-1]])
                return tuple(reversed(ring))
            if target not in came_from:
                came_from[target] = rank
                queue.append(target)
    return ()
