"""What a log tells of a job that is well: it ended, or it answered while its steps went on."""

from __future__ import annotations

import re

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Evidence

_WELL = ("RUNNING", "OK")
# Who says with which status it ended names the program.
_PROGRAM = re.compile(
    r"\b(?:torchrun|accelerate|deepspeed|python3?|srun|mpirun|sbatch|\w{1,40}\.(?:py|sh)|train\w*|job"
    r"|script|run|program)\b",
    re.IGNORECASE,
)
# A sentence about a status is no status.
_DOUBT = re.compile(
    r"\?|\b(?:expect\w*|should|would|wants?|waits?|never|not?|without|if|until|n't)\b",
    re.IGNORECASE,
)


def find_ended(evidence: Evidence, view: LogView) -> LogEvent | None:
    """Return the status 0 that stands below the line in which a program says it is done.

    A shell printed it, or who pasted the log wrote it down. The status alone may be that of another
    program, such as one behind a pipe; and a rank that says that it is done may hang behind that
    line. A program that ended did not hang, whatever was said above; but it may have been slow.
    """
    done = max((one.row for one in view.list_signatures("job.done")), default=0)
    done = done or _find_end_of_steps(evidence, view)
    asked = [
        one
        for one in view.list_signatures("shell.status", "job.status")
        if one.row > done and not _DOUBT.search(one.text)
    ]
    complaints = [
        one
        for one in view.list_signatures("paste.stopped")
        if one.row > done or "slow" in one.text.lower()
    ]
    failed = (*view.exceptions, *view.fatals, *view.exits, *evidence.stacks, *complaints)
    if evidence.incident.kind != "files" or len(view.files) != 1 or failed or not done:
        return None
    is_well = bool(asked) and all(one.groups["status"] == "0" for one in asked)
    return asked[0] if is_well else None


def _find_end_of_steps(evidence: Evidence, view: LogView) -> int:
    """Find the last steps above a line that says with which status the program itself ended."""
    named = [one for one in view.list_signatures("job.status") if _PROGRAM.search(one.text)]
    steps = evidence.logs.files[0].steps_since if len(evidence.logs.files) == 1 else 0
    return steps if named and steps else 0


def find_answered(evidence: Evidence, view: LogView) -> LogEvent | None:
    """Return the answer of RAS without any error, below steps that came at one pace.

    RAS alone does not tell a job that hangs in its network from one that goes on, nor do steps: a
    job may hang ever since. Somebody looked after the last step, and all ranks were together.
    """
    groups = list(view.list_signatures("ras.group"))
    failed = (
        *view.exceptions,
        *view.fatals,
        *view.exits,
        *evidence.stacks,
        *evidence.ras,
        *view.list_signatures("ras.trouble", "paste.stopped"),
        *(event for event in view.events if event.role in {"cause", "cascade"}),
    )
    if evidence.incident.kind != "files" or len(view.files) != 1 or failed or not groups:
        return None
    is_well = all((one.groups["status"], one.groups["errors"]) == _WELL for one in groups)
    steady = view.files[0].steady_until
    return groups[-1] if is_well and 0 < steady < groups[-1].row else None
