"""H115 lock-deadlock."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class LockDeadlock(SuspectRule):
    """Two threads of one rank wait for each other's lock, or a rank waits for a lock file.

    ## What it means

    Thread 1 holds lock A and wants B; thread 2 holds B and wants A. Neither can go on. The file of
    a lock is held by another process, or was left behind by one that was killed.

    ## How it is found

    Two threads are parked at a `with` or `acquire` of different locks in all samples. When
    the source shows that each is inside a `with` on the lock that the other wants, the
    finding is `certain`, else `likely`. Of stacks without their source, comments that people write
    behind the frames tell which lock each waits for and holds. Without these, two threads that are
    inside `acquire` or `__enter__` of a lock are `likely` where no other thread runs code of the
    user, and `possible` where one does, as that may hold the locks.

    A suspect whose main thread is in `FileBaton.wait` of torch, in `filelock` or `flock` is
    `likely`; `details.lock_file` is true then. Where all that are known wait for such a file, none
    of them is named: who holds it is none of them. Of logs, so are tracebacks that end in such a
    wait as somebody pressed Ctrl-C; it is `possible` where another rank was elsewhere.

    ## False alarms

    Two threads that wait for locks which a third one is about to release.

    ## What to do

    Take locks in the same order everywhere, or use one lock. Remove the file of a lock when no
    process holds it: `fuser -v FILE` tells.
    """

    code = codes.LOCK_DEADLOCK
    name = "lock-deadlock"
    remedies: ClassVar[tuple[str, ...]] = (
        "take the two locks in the same order in both places, or use one lock for both",
        "for a lock file: `fuser -v FILE` tells who holds it; remove it when nobody does",
    )
