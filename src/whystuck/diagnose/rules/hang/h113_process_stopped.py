"""H113 process-stopped."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class ProcessStopped(SuspectRule):
    """A process is stopped by a signal or frozen, and does not run at all.

    ## What it means

    The kernel shows the process in state T: somebody sent SIGSTOP, a debugger holds it, or a
    terminal stopped it. It may be a worker of the rank's data loader, for which the rank waits.

    ## How it is found

    All looks at `/proc/PID/stat` show T, and others wait for the rank. Of a worker, the rank's main
    thread is in the data loader; `details.worker_pid` is its process.

    A list that `ps` or `top` printed tells the same, where most processes of ranks run, and so does
    `/proc/PID/status`, also where a loop of a shell prints rank and state of one process after the
    other.

    ## False alarms

    A debugger or profiler that was attached on purpose.

    ## What to do

    Continue it with `kill -CONT PID`, and find out who stopped it.
    """

    code = codes.PROCESS_STOPPED
    name = "process-stopped"
    remedies: ClassVar[tuple[str, ...]] = (
        "continue it: `kill -CONT PID`",
        (
            "find who stopped it: a debugger, a batch system that suspends jobs, or Ctrl-Z in a "
            "terminal"
        ),
    )
