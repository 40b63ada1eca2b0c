"""N405 cgroup-tight."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class CgroupTight(CheckRule):
    """A limit of the cgroup leaves little.

    ## What it means

    The container or batch job may use less memory, CPU time or processes than the node has, and
    little is left. The kernel ends processes at the limit of memory, and stops all of them for the
    rest of a period at that of CPU time.

    ## How it is found

    The cgroups of this process and those above it are read, of version 1 and 2. File cache counts
    as free.

    ## False alarms

    A shell in another cgroup than the job will have.

    ## What to do

    Ask for more.
    """

    code = "N405"
    name = "cgroup-tight"
    remedies: ClassVar[tuple[str, ...]] = ("raise the limit of the container or of the batch job",)
