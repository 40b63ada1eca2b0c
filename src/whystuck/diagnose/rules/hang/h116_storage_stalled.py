"""H116 storage-stalled."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class StorageStalled(SuspectRule):
    """A rank is kept in an operation on a file, and the file system does not answer.

    ## What it means

    The server of a network file system is gone or overloaded, the program behind a FUSE mount
    hangs, or a disk does not come back. The kernel keeps the thread in state D, or in a sleep of
    its own, until there is an answer; at best SIGKILL ends it before.

    ## How it is found

    Over all looks at the process, the same thread is in the same system call on the same path,
    or in a wait of the kernel for a file system, and did not run once: its count of context
    switches stands still. The mount is found from the path and `/proc/PID/mountinfo`. A disk or an
    NFS server that completes requests meanwhile is slow, not silent. `details` has the mount, its
    type, the path and the state.

    From logs alone: a kernel says that a file server does not answer, and not that it does again,
    while ranks waited until a time limit. A hung task of Python on that host makes it `likely`; its
    rank is named where a line tells whose the process is, or where as many processes of a host are
    kept as it has ranks, else the host.

    A list that `ps` printed with the calls in which processes sleep (`wchan`) tells the same, and
    so do `/proc/PID/stack`, `wchan` and `status` as somebody printed them, and the stack of a task
    that the kernel calls blocked.

    ## False alarms

    One request to slow storage that takes longer than all looks together.

    ## What to do

    Look at the mount from another shell with `timeout 5 ls MOUNT`, and at the kernel log. Repair or
    remount it; the rank goes on by itself when the file system answers again.
    """

    code = codes.STORAGE_STALLED
    name = "storage-stalled"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "look at the mount named with `timeout 5 ls MOUNT` and at the kernel log, and bring "
            "its server back or remount it"
        ),
        "read data from local disks, or copy it there before the job",
    )
