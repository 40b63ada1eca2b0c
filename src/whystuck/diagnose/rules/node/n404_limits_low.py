"""N404 limits-low."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class LimitsLow(CheckRule):
    """A limit of processes is lower than jobs need.

    ## What it means

    The job inherits the limits of the shell or unit that starts it. What breaks one fails with
    messages such as `Too many open files`.

    ## How it is found

    The soft limits of `whystuck check` itself are compared with the policy: start it as the job is
    started. Locked memory is judged where there is InfiniBand, processes unless root asks.

    Of texts, the limit of locked memory that `ulimit -l`, `ulimit -a`, `/proc/PID/limits`, prlimit,
    libibverbs or Open MPI print for a host, where network cards of that host got no memory: NCCL
    prints `Call to ibv_create_cq failed`. Without the limit, it is C210. The same holds for the
    limit of processes, as OpenBLAS (`RLIMIT_NPROC 4096 current`), `ulimit -u` or the kernel print
    it, where a thread or process could not be started.

    ## False alarms

    A small job needs less. A limit of open files that is the default of the kernel is a note.

    ## What to do

    Raise it where the job is started.
    """

    code = codes.LIMITS_LOW
    needs = ("checks", "logs")
    name = "limits-low"
    remedies: ClassVar[tuple[str, ...]] = ("`ulimit -a` shows all limits",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what texts tell of limits."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
