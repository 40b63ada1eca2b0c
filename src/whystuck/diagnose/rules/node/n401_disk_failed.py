"""N401 disk-failed."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DiskFailed(CheckRule):
    """A path that the job needs cannot be used, or returns other data than was written.

    ## What it means

    The path is full, mounted read-only, not there, or its file server does not answer. A job would
    fail at its first checkpoint, or hang in state D. Where other data comes back than was written,
    checkpoints and inputs on it cannot be trusted.

    ## How it is found

    `whystuck check` writes a file of random data to each path (`--disk PATH`, the working directory
    and the folder for temporary files), past the cache where the file system can do that, and
    compares all of it. Each path has a process and a deadline of its own. `details.path` is the
    path, `details.reason` what is wrong. Little room is a warning.

    ## False alarms

    A path that this user is not meant to write to: leave it out of `--disk`.

    ## What to do

    Free the file system, mount it again or repair it, or take the node out of service.
    """

    code = "N401"
    name = "disk-failed"
    remedies: ClassVar[tuple[str, ...]] = ("`df -h`, `df -i`, `dmesg -T | tail` on this node",)
