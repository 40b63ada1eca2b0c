"""N404 limits-low."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class LimitsLow(CheckRule):
    """A limit of processes is lower than jobs need.

    ## What it means

    The job inherits the limits of the shell or unit that starts it. What breaks one fails with
    messages such as `Too many open files`.

    ## How it is found

    The soft limits of `whystuck check` itself are compared with the policy: start it as the job is
    started. Locked memory is judged where there is InfiniBand, processes unless root asks.

    ## False alarms

    A small job needs less. A limit of open files that is the default of the kernel is a note.

    ## What to do

    Raise it where the job is started.
    """

    code = "N404"
    name = "limits-low"
    remedies: ClassVar[tuple[str, ...]] = ("`ulimit -a` shows all limits",)
