"""The ops of each process group: who belongs to it, and the rows of each member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whystuck.evidence.collectives import Collectives, GroupName, IntColumn
from whystuck.evidence.model import Topology

_DEFAULT_DESC = "default_pg"
# A ring that lost its oldest entries still starts where others start; a dump of active ops only
# starts far into the sequence on every rank.
_FIRST_SEQ = 2


@dataclass(frozen=True)
class GroupOps:
    """One process group: its members, and the table rows of each rank in order of sequence."""

    name: str
    desc: str
    members: frozenset[int]
    rows_by_rank: Mapping[int, IntColumn]

    @property
    def label(self) -> str:
        """The name to print."""
        return self.name or self.desc or "?"


def collect_groups(table: Collectives, topology: Topology) -> tuple[GroupOps, ...]:
    """Sort the collectives (not p2p) of a table by group and rank.

    Args:
        table: All ops.
        topology: What is known of members from elsewhere.

    Returns:
        The groups, largest first.
    """
    keys = _resolve_keys(table)
    rows_by_key: dict[GroupName, dict[int, list[IntColumn]]] = {}
    collective = np.flatnonzero(~table.is_p2p)
    if len(collective) == 0:
        return ()
    pair = table.rank[collective] * max(1, len(table.groups)) + table.group[collective]
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    for rows in np.split(collective[order], starts[1:]):
        rank, group = int(table.rank[rows[0]]), int(table.group[rows[0]])
        key = keys.get((group, rank), table.groups[group])
        by_rank = rows_by_key.setdefault(key, {})
        by_rank.setdefault(rank, []).append(rows)
    groups = [_make_group(key, by_rank, topology, table) for key, by_rank in rows_by_key.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.members), group.label)))


def _resolve_keys(table: Collectives) -> dict[tuple[int, int], GroupName]:
    """Join a group whose members a rank does not know with the one group it must be."""
    known = [group for group in table.groups if group.members]
    keys: dict[tuple[int, int], GroupName] = {}
    for number, group in enumerate(table.groups):
        if group.members:
            continue
        for rank in np.unique(table.rank[table.group == number]).tolist():
            fits = [
                other
                for other in known
                if (other.name, other.desc) == (group.name, group.desc) and rank in other.members
            ]
            if len(fits) == 1:
                keys[number, rank] = fits[0]
    return keys


def _make_group(
    key: GroupName,
    rows_by_rank: dict[int, list[IntColumn]],
    topology: Topology,
    table: Collectives,
) -> GroupOps:
    members = frozenset(key.members) or topology.members_by_group.get(key.name, frozenset())
    if not members and key.desc == _DEFAULT_DESC:
        members = topology.ranks
    joined = {}
    for rank, parts in rows_by_rank.items():
        rows = np.concatenate(parts)
        joined[rank] = rows[np.argsort(table.seq[rows], kind="stable")]
    return GroupOps(key.name, key.desc, members or frozenset(rows_by_rank), joined)


def is_active_only(table: Collectives) -> bool:
    """Tell whether the dumps hold pending ops only: what is absent was then completed."""
    if len(table) == 0 or bool(table.done.any()):
        return False
    return int(table.seq.min()) > _FIRST_SEQ
