"""Whose counters of a control group are: the pod, host or rank that a text names with them."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent


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
    told = {rank for file in view.files for rank in file.seats.get(event.node, ())}
    # A rank that lines put on two hosts is on neither.
    doubted = {
        rank
        for file in view.files
        for host, ranks in file.seats.items()
        if host != event.node
        for rank in ranks
    }
    return QuotaOwner(event.node, tuple(sorted((told - doubted) | view.list_ranks_on(event.node))))
