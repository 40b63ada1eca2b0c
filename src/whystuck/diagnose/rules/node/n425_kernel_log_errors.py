"""N425 kernel-log-errors."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class KernelLogErrors(CheckRule):
    """The kernel has logged errors of hardware or storage.

    ## What it means

    A device, memory, a disk or a file server had errors since the node was started, within the last
    day.

    ## How it is found

    The kernel's log is searched for known lines; `whystuck explain ID` tells what each means. Lines
    about programs are left out. A fatal error of hardware that may be the name of a process, a file
    or a cgroup in a line, which any user chooses, is a warning, and keeps no job from starting.

    ## False alarms

    What was repaired since: the lines stay until the node is started again.

    ## What to do

    Follow the advice for the line.
    """

    code = "N425"
    name = "kernel-log-errors"
    remedies: ClassVar[tuple[str, ...]] = ("`dmesg -T --level err,crit,alert,emerg`",)
