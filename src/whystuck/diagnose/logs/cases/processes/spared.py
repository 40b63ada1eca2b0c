"""The process that a launcher did not end: it ends the others of its host when one has failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystuck.diagnose.logs.view import LogView

_CLOSING = re.compile(r"Sending process (\d{1,9}) closing signal SIG(?:TERM|INT)\b")
# A launcher of fewer processes tells too little; a host has no more devices than this.
_FEWEST, _MOST = 3, 16
# What kernels say of the process whose device met a fault.
_FAULTED = re.compile(r"\bpid (\d{1,9})\b")


@dataclass(frozen=True)
class Spared:
    """A process that ended by itself; ``rank`` is -1 where nothing tells."""

    pid: int
    rank: int = -1


def find_spared(view: LogView) -> Spared | None:
    """Find the one process of a launcher that it sends no signal, as it is gone.

    A launcher starts its processes one after the other, so that their numbers follow each other:
    the one number that is left out is that of the process that failed.
    """
    pids: dict[tuple[str, str, int], set[int]] = {}
    for event in view.list_signatures("elastic.sigterm"):
        if match := _CLOSING.search(event.text):
            pids.setdefault((event.artifact, event.node, event.pid), set()).add(int(match[1]))
    if len(pids) != 1:
        return None  # each of several launchers ends all of its own, but for one
    (closed,) = pids.values()
    first, last = min(closed), max(closed)
    gaps = set(range(first, last + 1)) - closed if last - first < _MOST else set()
    if len(closed) < _FEWEST or len(gaps) != 1:
        return None
    pid = gaps.pop()
    rank = view.find_rank_of_pid(pid)
    if rank is None:
        # With all ranks on one host, they are counted as its processes are.
        is_one_host = len(view.hosts) <= 1 and view.world_size <= len(closed) + 1
        is_whole = is_one_host and max(view.told_ranks, default=0) <= len(closed)
        rank = pid - first if is_whole else -1
    return Spared(pid, rank)


def find_faulted(view: LogView) -> int:
    """Return the process of whose device a kernel tells that it met a fault; 0 where none is."""
    found = {
        int(match[1])
        for event in view.list_signatures("amdgpu.fault_process")
        if (match := _FAULTED.search(event.text))
    }
    return found.pop() if len(found) == 1 else 0
