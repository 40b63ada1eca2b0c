"""P502 launch-bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import (
    CostRule,
    Told,
    cite,
    cite_time,
    format_ns,
    name_rank,
    name_who,
)
from whystuck.diagnose.traces.costs import Cost, TraceFacts, name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Citation, Confidence, Finding

_NS_PER_US = 1e3
_MAX_OPS = 3


class LaunchBound(CostRule):
    """The device is idle because the host launches its work too late.

    ## What it means

    The device finishes each kernel before the host has launched the next one: Python, the
    framework and the driver take longer than the work itself. A faster device would change nothing.

    ## How it is found

    From the idle time of the device whose next work was launched only after the work before it
    had ended, without the time that input (P501), syncs of the host (P506) and compilers (P508)
    explain, and without gaps between work that was already queued. Before its first work and after
    its last, a device waits for nothing: of a trace without steps the share of the time between
    is told, too. Ranks that come last to collectives are left to P504. `details`:
    `launches_per_step`, `late_launches_per_step` (their kernel began when the host came),
    `launch_us` (mean time of a call that launches), `apis` (the calls that take most time), `ops`
    (those that launch most kernels, where the trace tells).

    Of tables of torch.profiler in logs, where the device works for half of the time of the host or
    less, and the host launches kernels of some microseconds each, or spends a fifth of its time on
    launches; not where it waits for the device or for its batches.

    ## False alarms

    Traces with stacks or shapes: to record them slows the host, not the device; trace once
    without before you act. Steps that are traced while the job warms up.

    ## What to do

    Launch less often: capture graphs, compile, use fused or foreach forms, larger batches.
    """

    code = codes.LAUNCH_BOUND
    name = "launch-bound"
    needs = ("traces", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        (
            '`torch.compile(model, mode="reduce-overhead")`, or '
            "`torch.cuda.make_graphed_callables`: "
            "a captured graph is one launch"
        ),
        (
            "raise the batch size, or use fused forms: `optim.AdamW(..., fused=True)`, "
            "`foreach=True`, "
            "`F.scaled_dot_product_attention`"
        ),
        "keep the processor of the rank free and fast: bind it (`numactl`), performance governor",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when launches come too late."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        facts = scene.traces
        cost = facts.launch
        if not facts.has_device or cost.impact < policy.launch_note_share:
            return
        because = _cite_idle(facts, cost)
        details, cites = describe_launches(facts)
        start = "" if facts.is_steady else " (the start of the job may be in it)"
        yield self.make_cost_finding(
            Told(
                f"the device of {name_who(cost)} is idle for {_name_part(facts, cost)}, "
                f"as the host launches its work too late{start}",
                Confidence.LIKELY if facts.is_steady else Confidence.POSSIBLE,
                because + cites,
                details=details,
            ),
            cost,
            policy.launch_warning_share,
        )


def _name_part(facts: TraceFacts, cost: Cost) -> str:
    """Say how much of which time the device is idle.

    A trace without steps begins long before the first work, and launches cannot be late there:
    the share of the whole trace alone would say that the device is busy for the rest of it.
    """
    share = f"{cost.share_on_ranks:.0%}"
    mine = np.isin(cost.time.ranks, cost.uneven or cost.time.ranks)
    span = int(facts.device_span_ns[mine].sum())
    if facts.has_steps or not span or bool((facts.device_span_ns[mine] == 0).any()):
        return f"{share} of {name_share(facts)}"
    inside = f"{min(float(cost.ns[mine].sum()) / span, 1.0):.0%}"
    if inside == share:
        return f"{share} of {name_share(facts)}"
    return f"{inside} of the time from its first work to its last ({share} of {name_share(facts)})"


def describe_launches(facts: TraceFacts) -> tuple[dict[str, Any], list[Citation]]:
    """Describe how work is launched.

    Args:
        facts: The traces.

    Returns:
        The details of the finding, and what to cite for them.
    """
    table = facts.get("launch_summary")
    calls = sum_rows(table, "cpu_ns", ["api"])
    ops = [key[0] for key, _, _ in sum_rows(facts.get("op_kernels"), "count", ["op"])]
    details = {
        "launches_per_step": 0.0,
        "late_launches_per_step": 0.0,
        "launch_us": 0.0,
        "apis": [key[0] for key, _, _ in calls[:_MAX_OPS]],
        "ops": [op for op in ops if op][:_MAX_OPS],
    }
    if not calls:
        return details, []
    (api,), spent, row = calls[0]
    total = int(table["count"].sum())
    details["launches_per_step"] = round(facts.per_step(total), 1)
    if "late_count" in table.columns:
        details["late_launches_per_step"] = round(facts.per_step(int(table["late_count"].sum())), 1)
    details["launch_us"] = round(sum(one for _, one, _ in calls) / max(total, 1) / _NS_PER_US, 2)
    mine = int(table["count"][table["api"] == api].sum())
    text = f"{mine} calls of `{api}` take {format_ns(spent)} in all"
    return details, [cite("launch_summary", row, text)]


def _cite_idle(facts: TraceFacts, cost: Cost) -> list[Citation]:
    """Cite the device that waited longest for the host."""
    table = facts.get("idle_summary")
    if not len(table):
        return cite_time(facts, cost, "launch", "the device waits for a launch")
    is_mine = np.isin(table["rank"], cost.uneven or cost.time.ranks)
    row = int(np.argmax(np.where(is_mine, table["host_wait_ns"], -1)))
    late, idle = format_ns(table["host_wait_ns"][row]), format_ns(table["idle_ns"][row])
    rank = name_rank(int(table["rank"][row]))
    # Idle time before the first work and after the last is not in this table.
    text = (
        f"from its first work to its last, the device of {rank} is idle for {idle}, "
        f"of which {late} end with a launch that is late"
    )
    return [cite("idle_summary", row, text)]
