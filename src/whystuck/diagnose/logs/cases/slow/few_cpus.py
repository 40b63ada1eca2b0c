"""S306 by what Slurm says of a job: it has fewer processors than tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_CPUS = re.compile(r"\bNumCPUs=(\d{1,6})\b")
_TASKS = re.compile(r"\bNumTasks=(\d{1,6})\b")
# `grep -o` prints each in a line of its own.
_NEAR = 4
_MAX_LINES = 4


def make_few_cpus(view: LogView) -> Iterator[Case]:
    """Make the case of a job whose tasks take turns on fewer processors than there are tasks."""
    found = next((one for one in _list_counts(view) if one[0] < one[1]), None)
    if found is None:
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
        remedies=(
            "srun --cpus-per-task=N   # on srun, too: it does not take that of sbatch by itself",
            "grep Cpus_allowed_list /proc/self/status   # in a task: which it may use",
        ),
    )


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
