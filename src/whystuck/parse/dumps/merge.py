"""Many dumps to one table of collectives, and the members of each process group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import (
    CallSite,
    Collectives,
    DumpInfo,
    GroupName,
    IntColumn,
    OpForm,
    Statuses,
)
from whystuck.parse.dumps.counters import RankCounters, join_counters
from whystuck.parse.dumps.fast.columns import SCRATCH, Columns, join_columns
from whystuck.parse.dumps.flight_recorder import RankDump

# Columns whose values are put together to larger numbers later on.
_WIDE = ("group", "seq", "form")

T = TypeVar("T", GroupName, OpForm, CallSite)


@dataclass
class DumpTable:
    """Some dumps as one table; what the numbers in it mean is in ``groups``, ``forms``, ``sites``.

    This is what a worker that has read some files hands back. ``sizes`` are the numbers of
    entries of the dumps.
    """

    dumps: tuple[DumpInfo, ...]
    sizes: tuple[int, ...]
    counters: tuple[RankCounters, ...]
    columns: Columns
    groups: tuple[GroupName, ...]
    forms: tuple[OpForm, ...]
    sites: tuple[CallSite, ...]


@dataclass(frozen=True)
class Merged:
    """All dumps: their ops, and the ranks of each group by its name."""

    collectives: Collectives
    members: Mapping[str, frozenset[int]]


def merge_dumps(dumps: Iterable[RankDump]) -> Collectives:
    """Join the dumps of all ranks.

    Args:
        dumps: At most one for each rank.

    Returns:
        One table, sorted by rank, then by order of issue.
    """
    by_vocabulary: dict[int, list[RankDump]] = {}
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        by_vocabulary.setdefault(id(dump.vocabulary), []).append(dump)
    return merge_tables([stack_dumps(part) for part in by_vocabulary.values()]).collectives


def stack_dumps(dumps: Sequence[RankDump]) -> DumpTable:
    """Put dumps of one vocabulary into one table.

    Args:
        dumps: At least one.

    Returns:
        The table, in the order given.
    """
    words = dumps[0].vocabulary
    return DumpTable(
        dumps=tuple(
            DumpInfo(dump.rank, dump.artifact, dump.version, dump.first_record, dump.modified_ns)
            for dump in dumps
        ),
        sizes=tuple(len(dump) for dump in dumps),
        counters=tuple(dump.counters for dump in dumps),
        columns=join_columns([dump.columns for dump in dumps]),
        groups=tuple(words.groups),
        forms=tuple(words.forms),
        sites=tuple(words.sites),
    )


def merge_tables(tables: Sequence[DumpTable]) -> Merged:
    """Join the tables that workers made.

    Args:
        tables: At most one dump of each recorder of a rank in all of them. Their columns are empty
            afterwards.

    Returns:
        One table, sorted by rank, then by order of issue, and the members of groups.
    """
    if not tables:
        return Merged(Collectives(), {})
    groups, group_maps = _unite([table.groups for table in tables])
    forms, form_maps = _unite([table.forms for table in tables])
    sites, site_maps = _unite([table.sites for table in tables])
    counters = [
        _renumber(item, new)
        for table, new in zip(tables, group_maps, strict=True)
        for item in table.counters
    ]
    statuses = join_counters(counters, groups)
    members = _find_members(counters, groups)
    used = [new[_find_used(table, len(new))] for table, new in zip(tables, group_maps, strict=True)]
    kept, kept_map = _keep_used(groups, statuses.group, *used)
    statuses = _sort_statuses(replace(statuses, group=kept_map[statuses.group]))
    dumps = [dump for table in tables for dump in table.dumps]
    sizes = np.array([size for table in tables for size in table.sizes], dtype=np.int64)
    maps = [
        {"group": kept_map[group], "form": form, "site": site}
        for group, form, site in zip(group_maps, form_maps, site_maps, strict=True)
    ]
    columns = _fill([table.columns for table in tables], maps)
    ops = _sort_by_rank(dumps, sizes, columns)
    return Merged(replace(ops, groups=kept, forms=forms, sites=sites, statuses=statuses), members)


def _find_used(table: DumpTable, count: int) -> IntColumn:
    """Tell which of its groups the ops of a table speak of."""
    return np.flatnonzero(np.bincount(table.columns.group, minlength=count))


def _fill(parts: Sequence[Columns], maps: Sequence[Mapping[str, NDArray[Any]]]) -> Columns:
    """Put columns one after the other, with new numbers; empty each part when it is copied.

    All is in memory only once: what is not written yet takes none.
    """
    total = sum(map(len, parts))
    names = [column.name for column in fields(Columns) if column.name not in SCRATCH]
    joined: dict[str, NDArray[Any]] = {
        name: np.empty(total, _find_type(name, [getattr(part, name) for part in parts]))
        for name in names
    }
    first = 0
    for part, new in zip(parts, maps, strict=True):
        end = first + len(part)
        for name, out in joined.items():
            values = getattr(part, name)
            if name in new:
                out[first:end] = new[name][values]
            else:
                out[first:end] = values
            setattr(part, name, values[:0].copy())
        first = end
    joined |= dict.fromkeys(SCRATCH, np.empty(0, dtype=np.int64))
    return Columns(**joined)


def _find_type(name: str, columns: Sequence[NDArray[Any]]) -> np.dtype[Any]:
    if name == "site":
        return np.dtype(np.int32)
    return np.dtype(np.int64) if name in _WIDE else np.result_type(*columns)


def _unite(lists: Sequence[Sequence[T]]) -> tuple[tuple[T, ...], list[NDArray[Any]]]:
    """Give equal values of different tables the same number; tell the new number of each."""
    number_by_value: dict[T, int] = {}
    maps = [
        np.array(
            [number_by_value.setdefault(value, len(number_by_value)) for value in values],
            dtype=np.int32,
        )
        for values in lists
    ]
    return tuple(number_by_value), maps


def _renumber(counters: RankCounters, new: NDArray[Any]) -> RankCounters:
    return replace(
        counters,
        config=tuple(int(new[number]) for number in counters.config),
        group_by_pg_id={
            pg_id: None if number is None else int(new[number])
            for pg_id, number in counters.group_by_pg_id.items()
        },
    )


def _find_members(
    counters: Sequence[RankCounters], groups: Sequence[GroupName]
) -> dict[str, frozenset[int]]:
    members: dict[str, frozenset[int]] = {}
    for number in sorted({number for item in counters for number in item.config}):
        name = groups[number].name
        members[name] = members.get(name, frozenset()) | frozenset(groups[number].members)
    return members


def _keep_used(
    groups: Sequence[GroupName], *columns: IntColumn
) -> tuple[tuple[GroupName, ...], IntColumn]:
    """Drop the groups that no row speaks of; tell the new number of the others."""
    used = np.zeros(len(groups), dtype=np.bool_)
    for column in columns:
        used[column] = True
    kept = tuple(group for group, keep in zip(groups, used.tolist(), strict=True) if keep)
    return kept, np.cumsum(used) - 1


def _sort_by_rank(dumps: Sequence[DumpInfo], sizes: IntColumn, columns: Columns) -> Collectives:
    ranks = np.array([dump.rank for dump in dumps], dtype=np.int64)
    position = np.argsort(ranks, kind="stable")
    ordered = tuple(dumps[number] for number in position.tolist())
    rank, row = np.repeat(ranks, sizes), _count_rows(sizes)
    artifact = np.repeat(np.argsort(position).astype(np.int32), sizes)
    if (np.diff(ranks) <= 0).any():
        # A rank with two recorders has two dumps: time tells the order of their ops.
        twice = len(np.unique(ranks)) < len(ranks)
        time = columns.created_ns if twice else np.zeros(len(rank), dtype=np.int8)
        order = np.lexsort((time, rank))
        columns.take(order)
        rank, row, artifact = rank[order], row[order], artifact[order]
    return Collectives(
        rank=rank,
        group=columns.group,
        seq=columns.seq,
        form=columns.form,
        site=columns.site,
        created_ns=columns.created_ns,
        started_ns=columns.started_ns,
        completed_ns=columns.completed_ns,
        timeout_ms=columns.timeout_ms,
        artifact=artifact,
        row=row,
        is_p2p=columns.is_p2p,
        started=columns.started,
        done=columns.done,
        artifacts=tuple(dump.artifact for dump in ordered),
        dumps=ordered,
    )


def _count_rows(sizes: IntColumn) -> IntColumn:
    rows = np.arange(sizes.sum(), dtype=np.int32)
    rows -= np.repeat((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
    return rows


def _sort_statuses(statuses: Statuses) -> Statuses:
    order = np.argsort(statuses.rank, kind="stable")
    return Statuses(
        rank=statuses.rank[order],
        group=statuses.group[order],
        enqueued=statuses.enqueued[order],
        started=statuses.started[order],
        completed=statuses.completed[order],
    )
