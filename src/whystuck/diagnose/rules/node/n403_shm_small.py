"""N403 shm-small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class ShmSmall(CheckRule):
    """Shared memory has little room, or cannot be written.

    ## What it means

    Workers of data loaders hand batches over in `/dev/shm`. When it is full, they die with a bus
    error.

    ## How it is found

    A file is written there, and what is free is compared with the policy.

    Of texts, what `df`, `mount`, `/proc/mounts`, `docker inspect` or a `docker run --shm-size` show
    of `/dev/shm`, where less than 512 MiB are free and processes of the job ended for it: the
    messages of PyTorch and NCCL, a bus error, or a full device where shared memory is taken.
    Without these figures, it is C210.

    ## False alarms

    Jobs without workers need none.

    ## What to do

    Give the container more.
    """

    code = codes.SHM_SMALL
    needs = ("checks", "logs")
    name = "shm-small"
    remedies: ClassVar[tuple[str, ...]] = ("start the container with `--shm-size 8g` or more",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what texts tell of shared memory."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
