"""S310 communication-bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_alone
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity, Verdict

# The time of a smaller op is that of the host.
_LARGE = 1 << 20


class CommunicationBound(Rule):
    """Ranks are in transfers for a third of the time or more, and wait for nobody in them.

    ## What it means

    The job moves more data, or more small messages, than its network or its CPUs carry beside the
    computation. All ranks are alike.

    ## How it is found

    From the op logs: the rank that waits most is in synchronous ops for a third of the time or
    more, most of it after the last rank has come. It is a warning where the costliest ops move
    1 MiB or more and their bandwidth is known, else a note: the time of a small op is that
    of the host, and a test job does hardly anything else. Of the `measures`, `wait_share` is the
    share of its time in which the rank that waits most is in ops, `for_peers_share` the part of
    it before the last rank came. A job that took less than a second, or less than a minute with
    fewer than 20 ops of a kind, is too short.

    In logs, from tables of torch.profiler and `nsys stats`: kernels of NCCL and its like take half
    of the time of all kernels or more, in each table that is there, and nothing else tells why the
    job is slow. That is `possible`, as such a kernel also waits for ranks that are late. So are
    timers that ranks print, such as `bwd_allreduce_microstep` of DeepSpeed. What Megatron prints of
    all ranks is `likely`: the rank that is in `all-grads-sync` for the least time waits for nobody.

    ## False alarms

    More ranks than cores: then the time of an op is that of the scheduler.

    ## What to do

    Move less, or move it while ranks compute. The table of communication says which ops cost most.
    """

    code = codes.COMMUNICATION_BOUND
    name = "communication-bound"
    quiet_verdict = Verdict.SLOW
    severity = Severity.WARNING
    needs = ("ops", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "join small ops into few large ones, and reduce metrics every tenth step",
        "overlap them with computation: `async_op=True`, and DDP in place of ops of your own",
        "compare GB/s in the table below with what the link can carry",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when ranks are in transfers for long."""
        del policy
        wait = scene.pace.shared_wait
        if wait is None:
            yield from tell_alone(self, scene)
        if wait is None or wait.is_for_peers:
            return
        share = wait.share - wait.for_peers
        top = max(scene.pace.communication.rows, key=lambda row: row.exposed_share)
        found = self.make_finding(
            f"ranks are in transfers up to {share:.0%} of the time, most of it in {top.op} of "
            f"group {top.group}; no rank is late throughout",
            Confidence.LIKELY,
            Blame(groups=[top.group]),
            because=[
                Citation(
                    f"rank {wait.rank} is in ops {wait.share:.0%} of the time, "
                    f"{wait.for_peers:.0%} before the last rank comes"
                ),
                Citation(f"{top.calls} {top.op} take {top.exposed_share:.0%} of the time"),
            ],
            measures={
                "wait_share": round(wait.share, 4),
                "for_peers_share": round(wait.for_peers, 4),
            },
        )
        is_large = top.bytes_from >= _LARGE and top.busbw_gbps is not None
        yield found if is_large else replace(found, severity=Severity.NOTE)
