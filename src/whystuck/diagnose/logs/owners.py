"""Whose each process number is, by all that tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.ras import list_whole_members


class Owner(NamedTuple):
    """A process number, its host, which is empty where it is not known, and its rank."""

    pid: int
    node: str
    rank: int


def list_owners(evidence: Evidence, node_by_rank: Mapping[int, str]) -> Iterator[Owner]:
    """Yield what is known beside the lines, tracebacks and ends of the logs themselves.

    Args:
        evidence: All evidence.
        node_by_rank: The hosts of ranks.
    """
    for (node, pid), ranks in evidence.logs.ranks_by_process.items():
        yield from (Owner(pid, node, rank) for rank in ranks)
    for series in evidence.memory:
        pids = (series.pid, *series.worker_pids)
        yield from (Owner(pid, series.node, series.rank) for pid in pids)
    for sample in evidence.stacks:
        if sample.rank >= 0 and sample.pid:
            yield Owner(sample.pid, node_by_rank.get(sample.rank, ""), sample.rank)
    for file in evidence.logs.files:
        for rank, pid in file.pid_by_rank.items():
            yield Owner(pid, node_by_rank.get(rank, ""), rank)
    for member in list_whole_members(evidence.ras):
        # Who is known by an address alone may have any name in other logs.
        yield Owner(member.pid, "" if is_address(member.host) else member.host, member.rank)


def is_address(host: str) -> bool:
    """Tell whether a host is named by its address of IPv4."""
    return host.replace(".", "").isdecimal()
