"""The ops of each process group: who belongs to it, and the rows of each member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from whystuck.evidence.model import Topology
from whystuck.evidence.ops.collectives import Collectives, GroupName, IntColumn

_DEFAULT_DESC = "default_pg"
# A ring that lost its oldest entries still starts where others start; a dump of active ops only
# starts far into the sequence on every rank.
FIRST_SEQ = 2


@dataclass(frozen=True)
class GroupOps:
    """One process group: its members, and the table rows of each rank.

    ``rows_by_rank`` holds collectives in order of sequence, ``p2p_by_rank`` point-to-point ops in
    order of issue, ``counters`` the rows of ``Collectives.statuses``.
    """

    name: str
    desc: str
    members: frozenset[int]
    rows_by_rank: Mapping[int, IntColumn]
    p2p_by_rank: Mapping[int, IntColumn] = field(default_factory=dict)
    counters: Sequence[int] = ()

    @property
    def label(self) -> str:
        """The name to print."""
        return self.name or self.desc or "?"

    @cached_property
    def ordered(self) -> tuple[int, ...]:
        """The members in order: ends of point-to-point ops are positions in it."""
        return tuple(sorted(self.members))


@dataclass
class _Parts:
    """What is found of one group while the table is gone through."""

    collective: dict[int, list[IntColumn]] = field(default_factory=dict)
    p2p: dict[int, list[IntColumn]] = field(default_factory=dict)
    counters: list[int] = field(default_factory=list)


def collect_groups(table: Collectives, topology: Topology) -> tuple[GroupOps, ...]:
    """Sort the ops of a table by group and rank.

    Args:
        table: All ops.
        topology: What is known of members from elsewhere.

    Returns:
        The groups, largest first.
    """
    keys = _resolve_keys(table)
    found: dict[tuple[GroupName, str], _Parts] = {}
    backends, backend_by_form = _list_backends(table)
    for rank, code, rows in _split(table, backend_by_form):
        rest, is_p2p = divmod(code, 2)
        group, backend = divmod(rest, len(backends))
        key = keys.get((group, rank), table.groups[group])
        parts = found.setdefault((key, backends[backend]), _Parts())
        by_rank = parts.p2p if is_p2p else parts.collective
        by_rank.setdefault(rank, []).append(rows)
    status = table.statuses
    pairs = zip(status.rank.tolist(), status.group.tolist(), strict=True)
    for index, (rank, group) in enumerate(pairs):
        parts = found.get((keys.get((group, rank), table.groups[group]), "")) or _Parts()
        parts.counters.append(index)
    groups = [_make_group(key, parts, topology, table) for (key, _), parts in found.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.members), group.label)))


def _list_backends(table: Collectives) -> tuple[list[str], IntColumn]:
    """List the backends to keep apart, where ranks have two recorders; number that of each form.

    A group of two backends counts the ops of each by itself, and the counters that are kept beside
    do not say which of the two they are of.
    """
    recorders = [dump.rank for dump in table.dumps if not dump.is_op_log]
    if len(set(recorders)) == len(recorders):
        return [""], np.zeros(max(1, len(table.forms)), dtype=np.int64)
    backends = sorted({form.backend for form in table.forms})
    numbers = [backends.index(form.backend) for form in table.forms]
    return [backend or "?" for backend in backends], np.array(numbers, dtype=np.int64)


def _split(table: Collectives, backend_by_form: IntColumn) -> Iterator[tuple[int, int, IntColumn]]:
    """Yield the rank, the kind and the rows for each kind of op of each rank.

    The kind is the group, the backend in it and whether it is point-to-point, as one number. Rank
    by rank, few small numbers are sorted in linear time.
    """
    backends = int(backend_by_form.max(initial=0)) + 1
    is_small = len(table.groups) * backends * 2 <= np.iinfo(np.uint16).max
    code_type = np.uint16 if is_small else np.int64
    starts = np.flatnonzero(np.diff(table.rank, prepend=-1)).tolist()
    for start, stop in pairwise([*starts, len(table)]):
        own = slice(start, stop)
        kinds = table.group[own].astype(np.int64) * backends
        if backends > 1:
            kinds += backend_by_form[table.form[own]]
        codes = (kinds * 2 + table.is_p2p[own]).astype(code_type)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        rank = int(table.rank[start])
        for first, last in pairwise([0, *cuts.tolist(), stop - start]):
            yield rank, int(ordered[first]), order[first:last] + start


def _resolve_keys(table: Collectives) -> dict[tuple[int, int], GroupName]:
    """Join a group whose members a rank does not know with the one group it must be."""
    known: dict[tuple[str, str], list[GroupName]] = {}
    for group in table.groups:
        if group.members:
            known.setdefault((group.name, group.desc), []).append(group)
    keys: dict[tuple[int, int], GroupName] = {}
    for number, group in enumerate(table.groups):
        others = known.get((group.name, group.desc))
        if group.members or not others:
            continue
        for rank in np.unique(table.rank[table.group == number]).tolist():
            fits = [other for other in others if rank in other.members]
            if len(fits) == 1:
                keys[number, rank] = fits[0]
    return keys


def _make_group(key: GroupName, parts: _Parts, topology: Topology, table: Collectives) -> GroupOps:
    members = frozenset(key.members) or topology.members_by_group.get(key.name, frozenset())
    if not members and key.desc == _DEFAULT_DESC:
        members = topology.ranks
    joined = {}
    for rank, pieces in parts.collective.items():
        rows = pieces[0] if len(pieces) == 1 else np.sort(np.concatenate(pieces))
        seqs = table.seq[rows]
        is_sorted = bool((seqs[1:] >= seqs[:-1]).all())
        joined[rank] = rows if is_sorted else rows[np.argsort(seqs, kind="stable")]
    p2p = {rank: np.sort(np.concatenate(pieces)) for rank, pieces in parts.p2p.items()}
    seen = frozenset(joined) | frozenset(p2p)
    return GroupOps(key.name, key.desc, members or seen, joined, p2p, parts.counters)


def is_active_only(table: Collectives) -> bool:
    """Tell whether the dumps hold pending ops only: what is absent was then completed."""
    if len(table) == 0 or bool(table.done.any()):
        return False
    return int(table.seq.min()) > FIRST_SEQ
