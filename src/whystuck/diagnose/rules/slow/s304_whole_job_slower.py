"""S304 whole-job-slower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_alone
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Confidence, Finding, Severity

_NS_PER_MS = 1e6


class WholeJobSlower(Rule):
    """From one step on, all steps of the job take longer, and no rank alone is the reason.

    ## What it means

    Something that all ranks share has changed: the program (longer sequences, another phase of the
    training), the storage, the network, or a node that several ranks run on.

    ## How it is found

    From the times between the ops of the largest group: nearly all steps after the change take
    longer than nearly all before it, until the end, and their median is 15 % larger at least.
    There must be 30 steps on each side; the first five do not count. `details.step` is the first
    slow step where optimizers tell steps, `details.phase` whether the work of the ranks grew
    (`work`) or their ops (`communication`). Of the `measures`, `before_ms` and `after_ms` are the
    median steps, `lost_share` the share of the time since that is lost.

    In texts that people paste, from what a loop prints of its pace (`batches_per_sec`, `it/s`,
    `tps`, `elapsed time per iteration`) beside the number of each step: 40 % more time a step since
    one of them and until the text ends, where the steps before are alike, and so are those since.
    Nothing is said where the text tells of anything else that makes jobs slow, or ends them.
    `details.phase` is empty then.

    ## False alarms

    A program that has more to do from one step on, such as longer sequences.

    ## What to do

    Look what changed at that time: the log of the program, other jobs on the nodes, the storage.
    """

    code = codes.WHOLE_JOB_SLOWER
    name = "whole-job-slower"
    severity = Severity.WARNING
    needs = ("ops", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "compare a trace of a step from before with one from now: `whystuck trace diff A B`",
        "look what else runs on the nodes and uses the storage and the network since then",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when all steps take longer from one step on."""
        del policy
        found = scene.pace.slowdown
        if found is None:
            yield from tell_alone(self, scene)
            return
        before_ms, after_ms = found.before_ns / _NS_PER_MS, found.after_ns / _NS_PER_MS
        since = f"step {found.step}" if found.step >= 0 else "one moment"
        op = scene.ops.name_op(found.row)
        yield self.make_finding(
            f"all ranks are slower since {since}: a step takes {after_ms:.0f} ms, before it was "
            f"{before_ms:.0f} ms; what grew is {_GREW[found.phase]}",
            Confidence.LIKELY,
            Blame(groups=[found.group.label]),
            because=[scene.ops.cite_row(found.row, f"from this {op} on, steps take longer")],
            details={"phase": found.phase, "step": found.step},
            measures={
                "before_ms": round(before_ms, 3),
                "after_ms": round(after_ms, 3),
                "lost_share": round(1 - found.before_ns / found.after_ns, 4),
            },
        )


_GREW = {"work": "the work of all ranks", "communication": "the time in ops"}
