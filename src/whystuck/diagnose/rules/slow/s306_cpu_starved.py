"""S306 cpu-starved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.cpu_facts import Starved
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.ranks import name_ranks

_SIGNALS = "look who sends signals that stop the rank: `cpulimit`, a scheduler that suspends jobs"


class CpuStarved(Rule):
    """Ranks do not get the processor when they want to run.

    ## What it means

    The quota of their cgroup (a CPU limit of a container or of a batch system) is used up, and the
    kernel stops them for the rest of each period; or other processes take their cores.

    ## How it is found

    Once a second, the supervisor reads how long the main thread of each rank ran, how long it
    waited in the run queue (`/proc/PID/schedstat`), and how long the quota of its cgroup stopped it
    (`cpu.stat`). Ranks that are late in step after step (S301) are named where they wait in the
    run queue longer than the median of the others, by half of the time that the others wait for
    them. A rank that runs more than its peers may wait more in the same measure: where all cores
    are busy, one that has more to compute does. Where no rank is late, those are named that wait
    for a fifth of the time while a quota stops them for a quarter. Of the `measures`, `wait_share`
    is the share of the time in the run queue, `throttled_share` that of the quota.

    Every ten seconds, it reads the same of all threads. The ranks of a node are named whose threads
    want to run on 2.5 times as many cores as there are (`demand`), where eight threads or more of
    each have something to do, as with an `OMP_NUM_THREADS` that is too high. Who of them is late is
    a matter of luck then.

    It also reads the state of each rank. One that a signal had stopped in a fifth of the looks, and
    that went on three times, is named: something sends it SIGSTOP and SIGCONT in turns
    (`stopped_share`), such as a tool that limits processor time or suspends jobs.

    Of texts, `nr_throttled` of `cpu.stat`, or the same of cAdvisor, where it is a quarter of
    `nr_periods` and more. Whose counters these are is told by the name that stands before or above
    them (`== train-2`, `kubectl exec train-2 -- cat ...`, `rank 3:`), unless all that are shown are
    held up. The ranks of a pod or host are named where the text tells them: by lines that name both
    (`train-3  rank=3  step=2200`), by a sentence such as `rank = 2*pod + local`, or as those that
    are slow in a table of times are just those of the pod by its place in the list.

    So are jobs for which `scontrol show job` tells of fewer processors than tasks (`NumCPUs=2
    NumTasks=8`); nobody is named.

    ## False alarms

    A quota that is reached only in the start of a job: the times are those of the whole run, or
    since the rank is late.

    ## What to do

    Raise the CPU limit, or lower the number of threads; move what else runs on these cores.
    """

    code = codes.CPU_STARVED
    name = "cpu-starved"
    severity = Severity.WARNING
    needs = ("cpu", "logs")
    explains = (codes.SLOW_RANK, codes.SLOW_NODE, codes.IMBALANCE, codes.WHOLE_JOB_SLOWER)
    remedies: ClassVar[tuple[str, ...]] = (
        "raise the CPU limit of the container or batch job, which all threads of the rank share",
        "set OMP_NUM_THREADS so that ranks x threads is no more than the cores that the job has",
        "look what else runs on these cores: `pidstat -u 1`, `cat /sys/fs/cgroup/.../cpu.stat`",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when ranks wait for a processor."""
        del policy
        found = scene.pace.starved
        if found is not None:
            yield self._make(scene, found)
        else:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))

    def _make(self, scene: Scene, found: Starved) -> Finding:
        who, is_one = name_ranks(found.ranks), len(found.ranks) == 1
        verb = "does" if is_one else "do"
        how = f"{found.wait_share:.0%} of the time in the run queue"
        if found.throttled_share:
            share = f"{found.throttled_share:.0%} of the time"
            how = f"the CPU quota of the cgroup stops {'it' if is_one else 'them'} {share}"
        if found.demand:
            how = (
                f"{found.demand:.0f} of their threads want to run at a time, on "
                f"{found.shares[0].cores} cores"
            )
        if found.stopped_share:
            who_is = "it is" if is_one else "they are"
            how = (
                f"SIGSTOP and SIGCONT come in turns, {who_is} stopped "
                f"{found.stopped_share:.0%} of the time"
            )
        nodes = {scene.evidence.topology.node_by_rank.get(rank) for rank in found.ranks}
        finding = self.make_finding(
            f"{who} {verb} not get the processor: {how}"
            + (f"; {found.lost_share:.0%} of the time of all is lost" if found.lost_share else ""),
            Confidence.LIKELY,
            Blame(
                ranks=found.ranks,
                nodes=sorted(node for node in nodes if node),
                victims=found.victims,
            ),
            because=[
                Citation(
                    f"rank {one.rank} ran {one.run_share:.0%} of the time and waited in the run "
                    f"queue {one.wait_share:.0%}",
                    one.artifact,
                )
                for one in found.shares[:4]
            ],
            details={"cgroup": found.cgroup},
            measures={
                "wait_share": round(found.wait_share, 4),
                "throttled_share": round(found.throttled_share, 4),
                "stopped_share": round(found.stopped_share, 4),
                "lost_share": round(found.lost_share, 4),
                "demand": round(found.demand, 1),
            },
        )
        if found.stopped_share:
            return replace(finding, remedies=[_SIGNALS])
        return replace(finding, remedies=self.remedies[1:]) if found.demand else finding
