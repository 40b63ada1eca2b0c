"""C202 host-out-of-memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.memory_facts import find_memory_kill
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class HostOutOfMemory(LogRule):
    """Host memory ran out: the kernel killed a rank, or a rank got no memory.

    ## What it means

    The machine, or the memory cgroup of the container or the batch step, had no memory left. The
    kernel ends a process then, by SIGKILL and without a word in its own log. A worker of a data
    loader counts for its rank.

    ## How it is found

    The kernel log names the process it killed, and that process is a rank or a worker of one; or
    Slurm (`task 9: Out Of Memory`) or Kubernetes (`OOMKilled`) says so; or a rank says itself that
    it got no memory; or a daemon that watches memory (systemd-oomd, earlyoom) ended it. With
    `whystuck run`: the kernel counted a kill in the cgroup of a rank that ended by SIGKILL. A
    process that is no part of the job, or a kill at another time, is passed over. `details` holds
    the limit and what the process held, in bytes.

    ## False alarms

    Where a container counts its processes on its own, the kernel's number is not that of the rank;
    the rank that ended by SIGKILL on that host is named then.

    ## What to do

    Load less in each rank: fewer workers of data loaders, no copy of the data set in each of them,
    checkpoints that are read one rank after another. Or raise the limit.
    """

    code = codes.HOST_OUT_OF_MEMORY
    name = "host-out-of-memory"
    end_class = "process-lost"
    remedies: ClassVar[tuple[str, ...]] = (
        "use fewer loader workers (`num_workers`), or share the data set between them",
        "raise the limit: `--mem` in Slurm, `resources.limits.memory` in Kubernetes",
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002 - one face
        """Yield a finding for a rank that was killed while the kernel counted such a kill."""
        kill = find_memory_kill(scene)
        if kill is None or scene.exits.crash_signals:
            return
        what = f"its cgroup {kill.group}" if kill.group else "the host"
        yield self.make_finding(
            f"{name_ranks(kill.ranks)} ended by SIGKILL while {what} ran out of memory",
            Confidence.LIKELY if kill.count > len(kill.ranks) else Confidence.CERTAIN,
            Blame(ranks=kill.ranks, victims=scene.ranks.victims),
            because=[
                Citation(f"the kernel counted {kill.count} kills for memory", kill.artifact),
                *[
                    Citation(f"rank {rank} ended by SIGKILL", scene.exits.by_rank[rank].artifact)
                    for rank in kill.ranks
                ],
            ],
            details={"limit_bytes": kill.limit, "rss_bytes": kill.rss},
            measures={"growth_mib_s": kill.growth_mib_s} if kill.growth_mib_s else {},
        )
