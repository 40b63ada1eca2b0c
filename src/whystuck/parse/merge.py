"""Many dumps to one table of collectives, and the members of each process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from whystuck.evidence.collectives import (
    CallSite,
    Collectives,
    DumpInfo,
    GroupName,
    IntColumn,
    OpForm,
    Statuses,
)
from whystuck.parse.flight_recorder import RankDump

T = TypeVar("T", GroupName, OpForm, CallSite)


def merge_dumps(dumps: Iterable[RankDump]) -> Collectives:
    """Join the dumps of all ranks.

    Args:
        dumps: At most one for each rank.

    Returns:
        One table, sorted by rank, then by order of issue.
    """
    ordered = sorted(dumps, key=lambda dump: dump.rank)
    if not ordered:
        return Collectives()
    groups, group = _renumber(ordered, lambda dump: dump.groups, lambda dump: dump.group)
    forms, form = _renumber(ordered, lambda dump: dump.forms, lambda dump: dump.form)
    sites, site = _renumber(ordered, lambda dump: dump.sites, lambda dump: dump.site)
    lengths = [len(dump) for dump in ordered]
    return Collectives(
        rank=np.repeat(np.array([dump.rank for dump in ordered], dtype=np.int64), lengths),
        group=group,
        seq=np.concatenate([dump.seq for dump in ordered]),
        form=form,
        site=site,
        created_ns=np.concatenate([dump.created_ns for dump in ordered]),
        started_ns=np.concatenate([dump.started_ns for dump in ordered]),
        completed_ns=np.concatenate([dump.completed_ns for dump in ordered]),
        timeout_ms=np.concatenate([dump.timeout_ms for dump in ordered]),
        artifact=np.repeat(np.arange(len(ordered), dtype=np.int64), lengths),
        row=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        is_p2p=np.concatenate([dump.is_p2p for dump in ordered]),
        started=np.concatenate([dump.started for dump in ordered]),
        done=np.concatenate([dump.done for dump in ordered]),
        groups=groups,
        forms=forms,
        sites=sites,
        artifacts=tuple(dump.artifact for dump in ordered),
        dumps=tuple(
            DumpInfo(dump.rank, dump.artifact, dump.version, dump.first_record) for dump in ordered
        ),
        statuses=_merge_statuses(ordered, groups),
    )


def _merge_statuses(dumps: Sequence[RankDump], groups: tuple[GroupName, ...]) -> Statuses:
    number_by_group = {group: number for number, group in enumerate(groups)}
    renumbered = [
        np.array([number_by_group[dump.groups[old]] for old in dump.statuses.group.tolist()])
        for dump in dumps
    ]
    return Statuses(
        rank=np.concatenate([dump.statuses.rank for dump in dumps]),
        group=np.concatenate(renumbered).astype(np.int64),
        enqueued=np.concatenate([dump.statuses.enqueued for dump in dumps]),
        started=np.concatenate([dump.statuses.started for dump in dumps]),
        completed=np.concatenate([dump.statuses.completed for dump in dumps]),
    )


def _renumber(
    dumps: Sequence[RankDump],
    values_of: Callable[[RankDump], tuple[T, ...]],
    column_of: Callable[[RankDump], IntColumn],
) -> tuple[tuple[T, ...], IntColumn]:
    """Give equal values of different dumps the same number."""
    number_by_value: dict[T, int] = {}
    columns = []
    for dump in dumps:
        numbers = [
            number_by_value.setdefault(value, len(number_by_value)) for value in values_of(dump)
        ]
        column = column_of(dump)
        columns.append(np.array(numbers, dtype=np.int64)[column] if len(column) else column)
    return tuple(number_by_value), np.concatenate(columns)
