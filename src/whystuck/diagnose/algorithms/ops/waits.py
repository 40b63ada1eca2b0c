"""Who waits for whom: the graph whose ends are the suspects, and whose rings are deadlocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.progress import Progress, measure_progress
from whystuck.evidence.ops.collectives import Collectives, Frame
from whystuck.evidence.ops.names import needs_all

NO_ROW = -1
_NOBODY: frozenset[int] = frozenset()
# A ring is looked for from so many ranks; those of one ring all find it.
_MAX_STARTS = 64


@dataclass(frozen=True)
class Wait:
    """A rank waits in an op of a group.

    ``missing`` are members that have not issued it; ``behind`` those that have, but whose device
    is still at an older op; ``finished`` those for which it is over. ``is_device_stalled`` says
    that this rank's own device does not finish an op to which all members have given their part.
    ``row`` is that of the op, or ``NO_ROW`` when only a stack tells, which then fills ``op``,
    ``site`` and ``artifact``. ``is_sure`` is false where older ops are lost, which might tell that
    a missing rank is there. ``needs_stack`` says that the op may be over, or nobody may wait for
    it, unless a stack shows that the rank is blocked. ``known`` are the ranks waited for of which
    anything is known; None where that is so of all.
    """

    rank: int
    group: GroupOps
    seq: int
    row: int
    missing: frozenset[int]
    behind: frozenset[int] = _NOBODY
    finished: frozenset[int] = _NOBODY
    is_p2p: bool = False
    is_device_stalled: bool = False
    op: str = ""
    site: tuple[Frame, ...] = ()
    artifact: str = ""
    is_sure: bool = True
    needs_stack: bool = False
    known: frozenset[int] | None = None

    @property
    def targets(self) -> frozenset[int]:
        """The ranks that this one waits for."""
        if self.known:
            return self.known
        return _NOBODY if self.is_device_stalled else self.missing or self.behind

    @property
    def is_in_flight(self) -> bool:
        """Whether all members have issued the op and nobody is before it."""
        return not (self.missing or self.behind or self.is_device_stalled)


@dataclass(frozen=True)
class _Others:
    """Where the members of a group are, seen from one op."""

    missing: frozenset[int]
    behind: frozenset[int]
    finished: frozenset[int]


def find_waits(
    table: Collectives,
    groups: Iterable[GroupOps],
    oldest: Mapping[int, int],
    device_ranks: frozenset[int],
) -> tuple[Wait, ...]:
    """Find the collectives that ranks wait in, and who has not come to each.

    On a host, each group has its own oldest op that is not over. A device works its ops off in
    order: only the oldest of all groups can be what it is at.

    Args:
        table: All ops.
        groups: The groups of the table.
        oldest: The row of the oldest op of each rank that is not over.
        device_ranks: Ranks whose ops run on a device.

    Returns:
        One wait for each rank and group.
    """
    waits = []
    for group in groups:
        progress = measure_progress(table, group)
        heads = _find_heads(table, group, oldest, device_ranks)
        by_seq: dict[int, _Others] = {}
        for rank, row in heads.items():
            seq = int(table.seq[row])
            others = by_seq.get(seq)
            if others is None:
                others = by_seq[seq] = _compare(seq, group, progress, heads, table, device_ranks)
            waits.append(_make_wait(rank, group, row, others, table, device_ranks))
    return tuple(waits)


def _find_heads(
    table: Collectives,
    group: GroupOps,
    oldest: Mapping[int, int],
    device_ranks: frozenset[int],
) -> dict[int, int]:
    """Find the row of the op of a group that each rank is at."""
    heads = {}
    for rank, rows in group.rows_by_rank.items():
        if rank not in oldest:
            continue
        pending = np.flatnonzero(~table.done[rows])
        if len(pending) == 0:
            continue
        row = int(rows[pending[0]])
        if rank not in device_ranks or row == oldest[rank]:
            heads[rank] = row
    return heads


def _make_wait(
    rank: int,
    group: GroupOps,
    row: int,
    others: _Others,
    table: Collectives,
    device_ranks: frozenset[int],
) -> Wait:
    is_device = rank in device_ranks
    op = table.forms[int(table.form[row])].op
    # Where one rank needs the parts of all, nobody can be past the op before all gave theirs.
    is_shared = needs_all(op, unknown=True)
    if "all_to_all" in op or "alltoall" in op:
        is_shared = len(others.finished) == len(group.members) - 1
    is_stalled = is_device and is_shared and bool(others.finished) and not others.missing
    return Wait(
        rank,
        group,
        int(table.seq[row]),
        row,
        others.missing,
        others.behind if is_device else _NOBODY,
        others.finished,
        is_device_stalled=is_stalled,
    )


def _compare(
    seq: int,
    group: GroupOps,
    progress: Progress,
    heads: Mapping[int, int],
    table: Collectives,
    device_ranks: frozenset[int],
) -> _Others:
    """Sort the members by whether they have not come to an op, are before it, or past it."""
    missing, behind, finished = set(), set(), set()
    for member in group.members:
        if progress.issued.get(member, -1) < seq:
            missing.add(member)
        elif progress.finished.get(member, -1) >= seq:
            finished.add(member)
        elif member in device_ranks and (
            member not in heads or int(table.seq[heads[member]]) < seq
        ):
            behind.add(member)
    return _Others(frozenset(missing), frozenset(behind), frozenset(finished))


def prefer_known(waits: Iterable[Wait], unknown: frozenset[int]) -> tuple[Wait, ...]:
    """Let ranks wait for those of whom something is known, where there are any.

    Whatever became of the others, that wait alone keeps the rank.

    Args:
        waits: The waits.
        unknown: Ranks of which nothing is known: they have come to no op for all that is seen.

    Returns:
        The waits; those of one op still share one set of ranks.
    """
    known: dict[tuple[int, int], frozenset[int]] = {}
    found = []
    for wait in waits:
        if wait.is_device_stalled or wait.missing.isdisjoint(unknown):
            found.append(wait)
            continue
        key = id(wait.missing), id(wait.behind)
        if key not in known:
            known[key] = (wait.missing - unknown) or wait.behind
        found.append(replace(wait, known=known[key]))
    return tuple(found)


def find_targets(waits: Iterable[Wait]) -> dict[int, frozenset[int]]:
    """Return the ranks that each waiting rank waits for; empty when it waits for none."""
    found: dict[int, list[frozenset[int]]] = {}
    for wait in waits:
        found.setdefault(wait.rank, []).append(wait.targets)
    # Ranks that wait in one op go on sharing its set.
    targets = {
        rank: several[0].union(*several[1:]) if len(several) > 1 else several[0]
        for rank, several in found.items()
    }
    return {rank: ranks - {rank} if rank in ranks else ranks for rank, ranks in targets.items()}


def find_ends(targets_by_rank: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Find the ranks that others wait for and that wait for nobody themselves.

    Args:
        targets_by_rank: For each waiting rank, the ranks it waits for.

    Returns:
        The ends of all chains.
    """
    # Ranks that wait in one op share one set of ranks they wait for.
    distinct = {id(ranks): ranks for ranks in targets_by_rank.values()}
    reached = frozenset().union(*distinct.values())
    return frozenset(rank for rank in reached if not targets_by_rank.get(rank))


def find_cycle(targets_by_rank: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Find ranks that wait for each other in a ring.

    Args:
        targets_by_rank: For each waiting rank, the ranks it waits for.

    Returns:
        The shortest ring found, in order of waiting; empty when there is none.
    """
    best: tuple[int, ...] = ()
    for start in _peel(targets_by_rank)[:_MAX_STARTS]:
        ring = _find_ring(start, targets_by_rank)
        if ring and (not best or len(ring) < len(best)):
            best = ring
    return best


def find_knot(start: int, targets_by_rank: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Find all ranks that a rank waits for, over any chain, and that wait for it.

    Args:
        start: A rank of a ring.
        targets_by_rank: For each waiting rank, the ranks it waits for.

    Returns:
        The ranks of all rings through this rank.
    """
    reached, front = {start}, {start}
    while front:
        distinct = {id(ranks): ranks for rank in front if (ranks := targets_by_rank.get(rank))}
        front = set().union(*distinct.values()) - reached
        reached |= front
    cycle, grown = {start}, True
    while grown:
        new = {
            rank
            for rank in reached - cycle
            if not targets_by_rank.get(rank, _NOBODY).isdisjoint(cycle)
        }
        cycle |= new
        grown = bool(new)
    return frozenset(cycle)


def _peel(targets_by_rank: Mapping[int, frozenset[int]]) -> list[int]:
    """Return the ranks that somebody waits for and that wait themselves, again and again."""
    left = {rank for rank, ranks in targets_by_rank.items() if ranks}
    while left:
        distinct = {id(targets_by_rank[rank]): targets_by_rank[rank] for rank in left}
        reached = frozenset().union(*distinct.values())
        kept = {
            rank for rank in left if rank in reached and not targets_by_rank[rank].isdisjoint(left)
        }
        if len(kept) == len(left):
            break
        left = kept
    return sorted(left)


def _find_ring(start: int, targets_by_rank: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Search breadth first for the way back to a rank."""
    came_from: dict[int, int] = {}
    expanded: set[int] = set()
    queue = [start]
    for rank in queue:
        targets = targets_by_rank.get(rank, _NOBODY)
        if start in targets and rank != start:
            ring = [rank]
            while ring[-1] != start:
                ring.append(came_from[ring[-1]])
            return tuple(reversed(ring))
        if id(targets) in expanded:
            continue
        expanded.add(id(targets))
        for target in sorted(targets):
            if target not in came_from and target != start:
                came_from[target] = rank
                queue.append(target)
    return ()
