"""Whose each process number is, by all that tells of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.ras import list_whole_members

_PLACE, _SHOWN = "note.place", ("table.process", "table.wait")
# So far below a line that says whose node it is.
_MOST_BELOW = 9


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
    yield from _list_noted(evidence.logs.events)
    for member in list_whole_members(evidence.ras):
        # Who is known by an address alone may have any name in other logs.
        yield Owner(member.pid, "" if is_address(member.host) else member.host, member.rank)


def _list_noted(events: Iterable[LogEvent]) -> Iterator[Owner]:
    """Yield the one process that is shown below a line that says of which rank's node it is."""
    notes = [one for one in events if one.signature == _PLACE]
    shown = [one for one in events if one.signature in _SHOWN] if notes else []
    for note in notes:
        ends = [one.row for one in notes if one.artifact == note.artifact and one.row > note.row]
        until = min([*ends, note.row + _MOST_BELOW])
        pids = {
            (int(one.groups["pid"]), one.node)
            for one in shown
            if one.artifact == note.artifact and note.row <= one.row < until
        }
        if len(pids) == 1 and min(pids)[0]:
            yield Owner(*min(pids), int(note.groups["of"]))


def choose_ranks(
    by_host: Mapping[str, set[int]], evidence: Evidence, pid: int, node: str
) -> set[int]:
    """Choose the ranks that a process on a host may be, of those that have its number anywhere.

    Args:
        by_host: These ranks by their hosts, which are empty where they are not known.
        evidence: All evidence.
        pid: The number.
        node: The host, empty where it is not known.
    """
    if not node:
        return set[int]().union(*by_host.values())
    told = {one.host for one in list_whole_members(evidence.ras) if one.pid == pid}
    # Two addresses can be compared, and hosts number their processes alike.
    is_elsewhere = is_address(node) and any(map(is_address, told)) and node not in told
    unplaced = set[int]() if is_elsewhere else by_host.get("", set())
    return unplaced | by_host.get(node, set())


def is_address(host: str) -> bool:
    """Tell whether a host is named by its address of IPv4."""
    return host.replace(".", "").isdecimal()
