"""N406 clock-skewed."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class ClockSkewed(CheckRule):
    """The clock of the node is off, or nothing keeps it in step.

    ## What it means

    Logs of nodes cannot be put in order, tokens and certificates are refused, and `make`-like tools
    see files of the future.

    ## How it is found

    The kernel is asked (adjtimex), and the time of a new file on each path of `--disk` is compared
    with our own clock: on a shared file system the server sets it. A clock that no service keeps in
    step is a note, as virtual machines may be kept in step from outside.

    ## False alarms

    A file server whose clock is off: then all nodes say so.

    ## What to do

    Start a time service.
    """

    code = "N406"
    name = "clock-skewed"
    remedies: ClassVar[tuple[str, ...]] = ("`chronyc tracking` or `timedatectl` on this node",)
