"""H103 by a process that NCCL RAS calls dead and that its host does not have any more."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.context.ras_facts import choose_answer, find_laggards
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Citation
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.nodes.ras import RasProcess
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6


def make_gone(view: LogView) -> Iterator[Case]:
    """Make the case of ranks without an answer whose processes are known to be gone.

    Without an answer alone, a process may as well hang, or its host be out of reach. Why it ended
    is told by nothing here.
    """
    status = choose_answer(view.evidence)
    laggard = find_laggards(view.evidence, view.ranks) if status is not None else None
    if status is None or laggard is None:
        return
    dead = [process for process in status.processes if process.is_dead]
    gone = [(process, line) for process in dead if (line := _find_look(view, process))]
    missing = {member.rank for comm in status.comms for member in comm.missing}
    # Which of several that do not answer is which process is not told.
    if not gone or not len(gone) == len(dead) == len(laggard.ranks) <= len(missing):
        return
    hosts = sorted({process.host for process in dead})
    pids = " and ".join(str(process.pid) for process in dead[:_MAX_LINES])
    many = len(dead) > 1
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{name_ranks(laggard.ranks)} {'have' if many else 'has'} ended while the others "
        f"wait: process{'es' * many} {pids} {'are' if many else 'is'} gone from "
        f"{' and '.join(hosts[:_MAX_LINES])}; why is not told here",
        tier=PARTED - 1,
        ranks=laggard.ranks,
        victims=tuple(sorted(laggard.waiting - set(laggard.ranks))),
        lines=tuple(line for _, line in gone[:_MAX_LINES]),
        cites=tuple(
            Citation(
                f"NCCL RAS: process {process.pid} on {process.host} is considered dead",
                status.artifact,
            )
            for process, _ in gone[:_MAX_LINES]
        ),
        remedies=(
            f"ssh {hosts[0]} 'dmesg -T | grep -i -e killed -e segfault -e Xid'",
            "look at the end of the log of that rank, and at the exit code that its launcher tells",
        ),
    )


def _find_look(view: LogView, process: RasProcess) -> LogEvent | None:
    """Return the line that says that a host has no such process, and not that of another host."""
    for event in view.list_signatures("process.gone"):
        pids = {event.groups.get(name) for name in ("pid", "pid2", "pid3")}
        is_here = not event.node or is_same_host(event.node, process.host)
        if str(process.pid) in pids and is_here and is_said(event):
            return event
    return None
