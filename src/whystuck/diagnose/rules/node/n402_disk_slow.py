"""N402 disk-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DiskSlow(CheckRule):
    """A path that the job needs is slow.

    ## What it means

    Reading, writing, syncing or making files there is slower than any healthy disk or file server.
    Data loaders starve, and checkpoints take long.

    ## How it is found

    A file is written, synced, and read back cold: past the cache (O_DIRECT), or after the cache of
    it was dropped. `sync_ms` is the median time until 4 KiB are on the disk, `files_per_s` how many
    files were made, looked at and removed. File systems in memory are not judged. The thresholds
    are in the table `disk` of the policy.

    ## False alarms

    Other users of a shared file system at this moment: check again. A policy with the figures of
    your own storage tells more than ours, which only finds what is broken.

    ## What to do

    Compare with another node: on one node it is a disk or a link, on all nodes it is the server.
    """

    code = "N402"
    name = "disk-slow"
    remedies: ClassVar[tuple[str, ...]] = (
        "run `whystuck check --only disk --disk PATH` on another node, and compare",
    )
