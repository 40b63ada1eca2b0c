"""Ranks that outlive their launcher: they hold devices and ports that the next round needs."""

from __future__ import annotations

from collections.abc import Iterable

from whystuck.collect.processes.proc_files import read_start
from whystuck.launch.command import end_processes
from whystuck.launch.restarts.ending import LeftProcess

# A rank may save something; a signal for us waits no longer than that.
_GRACE_S = 10.0


def list_leftovers(pids: Iterable[int]) -> tuple[LeftProcess, ...]:
    """Return those of some processes that live, with what tells them from later ones."""
    starts = ((pid, read_start(pid)) for pid in pids)
    return tuple(LeftProcess(pid, start[1]) for pid, start in starts if start is not None)


def end_leftovers(left: Iterable[LeftProcess]) -> int:
    """End processes with all below them, by SIGTERM, then by SIGKILL; return how many lived."""
    known = set(left)
    found = [one.pid for one in list_leftovers(one.pid for one in known) if one in known]
    end_processes(found, _GRACE_S)
    return len(found)
