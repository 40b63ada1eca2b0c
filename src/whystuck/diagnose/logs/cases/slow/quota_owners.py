"""Whose counters of a control group are: the pod, host or rank that a text names with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from whystuck.diagnose.logs.cases.slow.own_times import find_slow_ranks
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK

# Pods of a set are numbered from 0 on.
_ORDINAL = re.compile(r"-(\d{1,5})$")


@dataclass(frozen=True)
class QuotaOwner:
    """The container of a control group, and the ranks that run in it, as far as they are told."""

    node: str = ""
    ranks: tuple[int, ...] = ()


def find_quota_owner(view: LogView, event: LogEvent) -> QuotaOwner:
    """Tell whose a counter is; nobody's where the text does not say so."""
    if event.rank >= 0:
        return QuotaOwner(event.node, (event.rank,))
    owner = view.find_rank_of_pid(event.pid, event.node) if event.pid else None
    if owner is not None:
        return QuotaOwner(event.node, (owner,))
    return _make_owner(view, event.groups.get("pod") or event.node)


def read_row_owner(view: LogView, row: LogEvent) -> QuotaOwner:
    """Tell whose counters a row of a table has."""
    node = row.groups.get("place") or ""
    own = row.groups.get("own") or ""
    return QuotaOwner(node, (int(own),)) if own else _make_owner(view, node)


def _make_owner(view: LogView, node: str) -> QuotaOwner:
    told = {rank for file in view.files for rank in file.seats.get(node, ())}
    # Sentences tell the ranks of a host in the order of its devices.
    told |= {
        rank
        for file in view.files
        for (host, _), rank in file.rank_by_device.items()
        if host and is_same_host(host, node)
    }
    # A rank that lines put on two hosts is on neither.
    doubted = {
        rank
        for file in view.files
        for host, ranks in file.seats.items()
        if host != node
        for rank in ranks
    }
    ranks = (told - doubted) | view.list_ranks_on(node) or _count_out(view, node)
    return QuotaOwner(node, tuple(sorted(ranks)))


def _count_out(view: LogView, place: str) -> frozenset[int]:
    """Return the ranks of a pod by its number, where somebody says how they are counted."""
    number = _ORDINAL.search(place)
    told = [event.groups for event in view.list_signatures("table.rank_formula")]
    if number is None or len({one["count"] for one in told}) != 1:
        return frozenset()
    count = int(told[0]["count"])
    first = count * int(number[1])
    return frozenset(range(first, first + count)) if first <= MAX_RANK else frozenset()


def find_slow_block(
    view: LogView, places: Sequence[str], mine: AbstractSet[str]
) -> tuple[int, ...]:
    """Return the ranks that are slow, where they are those of some pods by the order of both."""
    slow = find_slow_ranks(view)
    count = len(view.ranks) // len(places)
    is_whole = count * len(places) == len(view.ranks) and view.ranks == set(range(len(view.ranks)))
    if not slow or not is_whole:
        return ()
    numbers = [at for at, place in enumerate(places) if place in mine]
    block = {count * at + rank for at in numbers for rank in range(count)}
    return slow if block == set(slow) else ()
