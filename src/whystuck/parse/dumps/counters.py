"""The counters of each process group, ``pg_status``, and which group each of them counts for.

They are keyed by a number that is a rank's own, in the order in which it made its groups. Three
things tell the group: the entries of the same dump; the entries of other ranks that made the same
kinds of groups; and the order of the group names, which torch counts up. What these do not tell is
left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from whystuck.evidence.numbers import is_number
from whystuck.evidence.ops.collectives import GroupName, Statuses

_MAX_COUNT = 1 << 62


@dataclass(frozen=True)
class Counter:
    """The counters of one group of one rank, as they stand in the dump."""

    pg_id: int
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True)
class RankCounters:
    """What one dump tells of its groups; groups are numbers.

    ``config`` are the groups the rank belongs to. ``group_by_pg_id`` is what its entries tell: a
    group, or None when they do not agree.
    """

    rank: int
    counters: tuple[Counter, ...] = ()
    config: tuple[int, ...] = ()
    group_by_pg_id: Mapping[int, int | None] = field(default_factory=dict)


def read_counters(pg_status: Mapping[Any, Any]) -> tuple[Counter, ...]:
    """Read ``pg_status``.

    Args:
        pg_status: As it stands in the dump; the numbers of JSON are text.

    Returns:
        The counters, by number of the group.
    """
    rows = [
        (
            int(pg_id),
            int(status.get("last_enqueued_collective", -1)),
            int(status.get("last_started_collective", -1)),
            int(status.get("last_completed_collective", -1)),
        )
        for pg_id, status in pg_status.items()
    ]
    if any(max(map(abs, row)) > _MAX_COUNT for row in rows):
        raise ValueError("a counter is out of range")
    rows.sort(key=itemgetter(0))
    return tuple(Counter(*row) for row in rows)


def join_counters(ranks: Sequence[RankCounters], groups: Sequence[GroupName]) -> Statuses:
    """Find the group of each counter of each rank.

    Args:
        ranks: What the dumps tell.
        groups: What the numbers in them index.

    Returns:
        One row for each counter whose group is certain.
    """
    peers = _Peers(ranks, groups)
    rows = [
        (item.rank, group, counter.enqueued, counter.started, counter.completed)
        for item in ranks
        for counter, group in peers.resolve(item)
    ]
    table = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, 5)
    return Statuses(*(np.ascontiguousarray(column) for column in table.T))


class _Peers:
    """What the entries of all ranks together tell of the numbers of groups."""

    def __init__(self, ranks: Sequence[RankCounters], groups: Sequence[GroupName]) -> None:
        self._groups = groups
        self._descs: dict[object, set[str]] = defaultdict(set)
        agree = disagree = 0
        for item in ranks:
            shape = self._shape(item)
            by_order = self._by_order(item)
            for pg_id, group in item.group_by_pg_id.items():
                if group is None:
                    continue
                self._descs[shape, pg_id].add(groups[group].desc)
                if pg_id in by_order:
                    agree += by_order[pg_id] == group
                    disagree += by_order[pg_id] != group
        self._order_holds = agree > 0 and disagree == 0

    def resolve(self, item: RankCounters) -> list[tuple[Counter, int]]:
        """Find the groups of one rank's counters; those in doubt are left out."""
        shape = self._shape(item)
        by_order = self._by_order(item) if self._order_holds else {}
        found = []
        for counter in item.counters:
            if counter.pg_id in item.group_by_pg_id:
                group = item.group_by_pg_id[counter.pg_id]
            else:
                told = {by_order.get(counter.pg_id), self._by_peers(item, shape, counter.pg_id)}
                told.discard(None)
                group = told.pop() if len(told) == 1 else None
            if group is not None:
                found.append((counter, group))
        return found

    def _shape(self, item: RankCounters) -> object:
        """Ranks of one shape made groups of the same kinds in the same order."""
        descs = sorted(self._groups[number].desc for number in item.config)
        return tuple(descs), tuple(counter.pg_id for counter in item.counters)

    def _by_peers(self, item: RankCounters, shape: object, pg_id: int) -> int | None:
        descs = self._descs.get((shape, pg_id), set())
        fits = [number for number in item.config if self._groups[number].desc in descs]
        return fits[0] if len(descs) == 1 and len(fits) == 1 else None

    def _by_order(self, item: RankCounters) -> dict[int, int]:
        names = [self._groups[number].name for number in item.config]
        if len(names) != len(item.counters) or not all(map(is_number, names)):
            return {}
        ordered = sorted(item.config, key=lambda number: int(self._groups[number].name))
        return {
            counter.pg_id: number for counter, number in zip(item.counters, ordered, strict=True)
        }
