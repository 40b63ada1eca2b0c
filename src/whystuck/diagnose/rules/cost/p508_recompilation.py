"""P508 recompilation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, name_who
from whystuck.diagnose.traces.costs import name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import format_ranks

_NS_PER_MS = 1e6
_MAX_NAMES = 3


class Recompilation(CostRule):
    """Code is compiled in steps that should be steady.

    ## What it means

    `torch.compile` compiles again when a guard fails: another shape, another type, another Python
    value. The first steps of a job must compile; later ones should not.

    ## How it is found

    From the compiler's own marks in the trace, in steps other than the first traced one and the
    first two of the job, as far as the device was idle meanwhile. `details`: `names` of what
    compiled, `steps` in which it did, `count`.

    Of logs, from what torch prints with `TORCH_LOGS=recompiles`, where it also says that a function
    was compiled as often as it may be (`hit config.recompile_limit`), or where each step below such
    a line takes at least three times as long as the other steps that the loop prints. Without it,
    from the function and the reason that torch prints at that limit, where some steps take three
    times as long as the others, at no fixed distance, and no save is told of.

    ## False alarms

    The first step of an evaluation, or of a longer sequence, compiles once.

    ## What to do

    Find the guard that fails, and make what it guards constant, or mark it as dynamic.
    """

    code = codes.RECOMPILATION
    name = "recompilation"
    needs = ("traces", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "run with `TORCH_LOGS=recompiles` once: it prints the guard that failed",
        (
            "pad batches to a few sizes, or `torch.compile(..., dynamic=True)`, "
            "`torch._dynamo.mark_dynamic(x, 0)`; drop the last, smaller batch (`drop_last=True`)"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when steady steps compile."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        facts = scene.traces
        cost, rows = facts.compilation, facts.is_recompilation
        if cost.impact < policy.cost_note_share:
            return
        table = facts.get("compilations")
        found = sum_rows(table, "sum_ns", ["name"], rows)
        (name,), spent, row = found[0]
        steps = sorted({int(step) for step in table["step"][rows].tolist()})
        text = f"steps {format_ranks(steps)}" if len(steps) > 1 else f"step {steps[0]}"
        yield self.make_cost_finding(
            Told(
                f"{name_who(cost)}: code is compiled again in {text}, for "
                f"{cost.share_on_ranks:.0%} of "
                f"{name_share(facts)}",
                Confidence.CERTAIN,
                [
                    cite(
                        "compilations", row, f"`{name}` takes {spent / _NS_PER_MS:.4g} ms in {text}"
                    )
                ],
                details={
                    "names": [key[0] for key, _, _ in found[:_MAX_NAMES]],
                    "steps": steps,
                    "count": int(table["count"][rows].sum()),
                },
            ),
            cost,
            policy.cost_warning_share,
        )
