"""S306 by what Slurm and the kernel say: there are fewer processors than tasks or processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_CPUS = re.compile(r"\bNumCPUs=(\d{1,6})\b")
_TASKS = re.compile(r"\bNumTasks=(\d{1,6})\b")
# `grep -o` prints each in a line of its own.
_NEAR = 4
_MAX_LINES = 4
_COUNTED = re.compile(r"^\s{0,12}(\d{1,6}) Cpus_allowed_list:")
# So many processes for each processor wait for their turn.
_CROWDED = 8
_ADVICE = (
    "srun --cpus-per-task=N   # on srun, too: it does not take that of sbatch by itself",
    "grep Cpus_allowed_list /proc/self/status   # in a task: which it may use",
)


def make_few_cpus(view: LogView) -> Iterator[Case]:
    """Make the case of a job whose tasks take turns on fewer processors than there are tasks."""
    found = next((one for one in _list_counts(view) if one[0] < one[1]), None)
    if found is None:
        yield from _make_bound(view)
        return
    cpus, tasks, lines = found
    allowed = [event for event in view.list_signatures("cpu.allowed") if is_said(event)]
    many = "s" if cpus > 1 else ""
    yield Case(
        code=codes.CPU_STARVED,
        summary=f"{tasks} tasks of the job share {cpus} processor{many}: loaders and launches of "
        "kernels wait for their turn on all ranks",
        tier=NOTE,
        lines=(*lines, *allowed)[:_MAX_LINES],
        details={"cpus": cpus, "tasks": tasks},
        remedies=_ADVICE,
    )


def _make_bound(view: LogView) -> Iterator[Case]:
    """Make the case of processes of a host that may all use the same few processors, and no others.

    How much they compute is not in that; the load of the host shows how many want to run.
    """
    hosts: dict[tuple[str, str], list[LogEvent]] = {}
    for event in view.list_signatures("cpu.allowed"):
        if is_said(event):
            hosts.setdefault((event.artifact, event.node), []).append(event)
    for events in hosts.values():
        lists = {one.groups.get("list") or one.groups.get("list2") or "" for one in events}
        cpus = _count_cpus(min(lists)) if len(lists) == 1 else 0
        processes = sum(map(_count_processes, events))
        if not 0 < _CROWDED * cpus <= processes:
            continue
        loads = view.list_signatures("table.load")
        busy = [one for one in loads if float(one.groups["load"]) >= _CROWDED * cpus]
        yield Case(
            code=codes.CPU_STARVED,
            summary=f"{processes} processes may use {cpus} processor{'s' * (cpus > 1)} alone: "
            "loaders and launches of kernels wait for their turn on all ranks",
            tier=NOTE,
            lines=(*events, *busy)[:_MAX_LINES],
            confidence=Confidence.LIKELY if busy else Confidence.POSSIBLE,
            details={"cpus": cpus, "processes": processes},
            remedies=_ADVICE,
        )
        return


def _count_cpus(text: str) -> int:
    """Return how many processors a list such as `0-7,16` has."""
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            total += max(0, int(last or first) - int(first) + 1)
    return total


def _count_processes(event: LogEvent) -> int:
    """Return of how many processes a line tells: `uniq -c` counts lines that are the same."""
    counted = _COUNTED.match(event.text)
    if counted is not None:
        return int(counted[1])
    return event.count if event.groups.get("list") else 1


def _list_counts(view: LogView) -> Iterator[tuple[int, int, tuple[LogEvent, ...]]]:
    """Yield how many processors and tasks each job that is shown has, and what says so."""
    last: tuple[LogEvent, int] | None = None
    for event in view.list_signatures("slurm.counts"):
        if not is_said(event):
            continue
        cpus, tasks = _CPUS.search(event.text), _TASKS.search(event.text)
        if cpus:
            last = event, int(cpus[1])
        if tasks and last is not None:
            first, count = last
            last = None
            if first.artifact == event.artifact and event.row - first.row <= _NEAR:
                yield count, int(tasks[1]), (first, event) if first is not event else (event,)
