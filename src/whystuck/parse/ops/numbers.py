"""Numbers that mean the same op on all ranks of a group, which the numbers in a log may not.

A group that is made again, or recorded again after a switch, counts anew. A log that was switched
on in the middle counts from there: ranks that were switched on between the same two optimizer
steps are then aligned by step. An op that was refused when it was issued never reached its peers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from whystuck.evidence.ops.log import (
    ISSUE_FAILED,
    P2P,
    UNKNOWN,
    BoolColumn,
    Column,
    Ops,
    OpTeam,
    slice_logs,
)
from whystuck.parse.ops.ends import find_ends


def number_ops(ops: Ops) -> Ops:
    """Fill the columns ``team``, ``place`` and ``ended_ns``.

    Args:
        ops: The op logs.

    Returns:
        The same ops with the columns.
    """
    teams: dict[tuple[str, tuple[int, ...], int, int], list[int]] = {}
    for number, group in enumerate(ops.groups):
        if group.ranks:
            key = group.name, tuple(sorted(group.ranks)), group.generation, group.life
            teams.setdefault(key, []).append(number)
    team_by_group = np.full(len(ops.groups), UNKNOWN, dtype=np.int64)
    told = []
    for at, (key, numbers) in enumerate(teams.items()):
        groups = [ops.groups[number] for number in numbers]
        team_by_group[numbers] = at
        told.append(
            OpTeam(
                *key,
                desc=groups[0].desc,
                backend=groups[0].backend,
                base=min(group.base for group in groups),
                step=max(group.step for group in groups),
            )
        )
    team = team_by_group[ops.group]
    # A group that its rank does not belong to is a mistake of whoever wrote the log.
    belongs = np.zeros((len(ops.logs), len(told) + 1), dtype=np.bool_)
    number_by_rank = {log.rank: number for number, log in enumerate(ops.logs)}
    for at, one in enumerate(told):
        belongs[[number_by_rank[rank] for rank in one.members if rank in number_by_rank], at] = True
    team = np.where(belongs[ops.log, team], team, UNKNOWN)
    place = _number(ops, team, told)
    return replace(ops, team=team, place=place, teams=tuple(told), ended_ns=find_ends(ops))


def _number(ops: Ops, team: Column, teams: list[OpTeam]) -> Column:
    place = np.where(team == UNKNOWN, UNKNOWN, ops.seq)
    late = [number for number, one in enumerate(teams) if one.base < 0]
    whole = find_whole_steps(ops)
    for number in late:
        mine = np.flatnonzero(team == number)
        step = max(teams[number].step, *(whole.get(rank, 0) for rank in teams[number].members))
        is_kept = (ops.step[mine] >= step) & (step > 0)
        place[mine] = UNKNOWN
        _count(ops, mine[is_kept], place)
    refused = _find_refused(ops) & (place != UNKNOWN)
    for number in np.unique(team[refused]).tolist():
        _leave_out(ops, np.flatnonzero((team == number) & (place != UNKNOWN)), refused, place)
    return place


def find_whole_steps(ops: Ops) -> dict[int, int]:
    """Find the first step of which a rank has recorded all, for ranks that have lost ops.

    The step of the oldest record that is left may have begun before it.
    """
    return {
        log.rank: int(ops.step[own].min()) + 1
        for log, own in zip(ops.logs, slice_logs(ops), strict=True)
        if log.dropped and own.stop > own.start
    }


def _kinds(ops: Ops, rows: Column) -> Column:
    """Number what is counted together: ops of one rank, collectives and transfers apart."""
    return ops.rank[rows] * 2 + ((ops.flags[rows] & P2P) > 0)


def _count(ops: Ops, rows: Column, place: Column) -> None:
    kind = _kinds(ops, rows)
    order = np.argsort(kind, kind="stable")
    starts = np.flatnonzero(np.diff(kind[order], prepend=UNKNOWN))
    sizes = np.diff(np.append(starts, len(order)))
    place[rows[order]] = np.arange(len(order)) - np.repeat(starts, sizes) + 1


def _find_refused(ops: Ops) -> BoolColumn:
    # A monitored barrier raises after it has waited.
    barrier = np.array([form.op == "monitored_barrier" for form in ops.forms], dtype=np.bool_)
    return np.asarray(((ops.flags & ISSUE_FAILED) > 0) & ~barrier[ops.form])


def _leave_out(ops: Ops, rows: Column, refused: BoolColumn, place: Column) -> None:
    """Count without the refused ops of each rank, but for one that is its last."""
    kind = _kinds(ops, rows)
    for one in np.unique(kind[refused[rows]]).tolist():
        mine = rows[kind == one]
        gone = refused[mine]
        gone[-1] = False
        place[mine] = np.where(gone, UNKNOWN, place[mine] - np.cumsum(gone))
