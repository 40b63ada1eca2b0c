"""N402 disk-slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


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

    Of texts, a mount or disk of which nfsiostat (`avg RTT (ms)`) or `iostat -x` (`r_await`) shows
    that reads or writes take 100 ms and more, while they are made; a disk must be busy as well.

    ## False alarms

    Other users of a shared file system at this moment: check again. A policy with the figures of
    your own storage tells more than ours, which only finds what is broken.

    ## What to do

    Compare with another node: on one node it is a disk or a link, on all nodes it is the server.
    """

    code = codes.DISK_SLOW
    needs = ("checks", "logs")
    name = "disk-slow"
    remedies: ClassVar[tuple[str, ...]] = (
        "run `whystuck check --only disk --disk PATH` on another node, and compare",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what tools in a log show."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
