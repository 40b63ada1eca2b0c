"""Replica groups of torchft: each has a default group of its own, numbered from 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import GroupName

_DEFAULT_DESC = "default_pg"


def split_replicas(evidence: Evidence, replica_size: int) -> Evidence:
    """Give the default group of each replica the ranks of the whole job.

    In a job of torchft all replicas write dumps in which the default group has the members
    ``0..replica_size-1``. They are different groups: members count on from replica to replica.

    Args:
        evidence: The evidence as it was read, with the ranks of the whole job.
        replica_size: The number of ranks in a replica group, above 0.

    Returns:
        The evidence with a default group for each replica; other groups are left as they are.
    """
    table = evidence.collectives
    groups = list(table.groups)
    number_by_group: dict[GroupName, int] = {group: i for i, group in enumerate(groups)}
    column = table.group.copy()
    split: set[str] = set()
    for number, group in enumerate(table.groups):
        if group.desc != _DEFAULT_DESC:
            continue
        split.add(group.name)
        mine = np.flatnonzero(table.group == number)
        replica = table.rank[mine] // replica_size
        for index in np.unique(replica).tolist():
            first = index * replica_size
            local = group.members or range(replica_size)
            moved = replace(group, members=tuple(first + rank % replica_size for rank in local))
            if moved not in number_by_group:
                number_by_group[moved] = len(groups)
                groups.append(moved)
            column[mine[replica == index]] = number_by_group[moved]
    ranks = {dump.rank for dump in table.dumps} | evidence.topology.ranks
    replicas = max(ranks, default=-1) // replica_size + 1
    known = evidence.topology.members_by_group
    topology = replace(
        evidence.topology,
        world_size=max(evidence.topology.world_size, replicas * replica_size),
        members_by_group={name: known[name] for name in known if name not in split},
    )
    return replace(
        evidence,
        topology=topology,
        collectives=replace(table, group=column, groups=tuple(groups)),
    )
