"""P506 host-sync."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, name_who, parse_place
from whystuck.diagnose.traces.costs import name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Confidence, Finding

_NS_PER_MS = 1e6


class HostSync(CostRule):
    """The host waits for the device inside the step, and the device then waits for the host.

    ## What it means

    A call such as `loss.item()` returns when the device has done all its work. Until the host has
    launched something again, the device has nothing to do. What costs is not the wait of the
    host, but the empty queue after it.

    ## How it is found

    From calls of the runtime that wait for the device, and the time that the device is idle from
    their return to its next work, without time that input explains (P501). The finding names the
    call, the op around it (`aten::item`, `aten::nonzero`, a copy), and the line where the trace has
    stacks. `details`: `call`, `op`, `place`, `per_step`, `wait_ms_per_step` (the host in the call).

    Of tables of torch.profiler in logs, where the host spends 40 % of its time and more in calls
    that wait for the device, several times a step, and the device works for 70 % of it or less.

    ## False alarms

    A sync at the end of a step that is there to measure its time: without it, the time moves.

    ## What to do

    Keep values on the device, and read them seldom.
    """

    code = codes.HOST_SYNC
    name = "host-sync"
    needs = ("traces", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "read losses and metrics every N steps, or a step later: keep them as tensors and call "
            "`.item()`, `.cpu()`, `print` or `if tensor:` on many at once"
        ),
        (
            "copy with `non_blocking=True` to pinned memory; avoid `nonzero`, boolean masks and "
            "`torch.cuda.synchronize()` in the step"
        ),
        "find them: `torch.cuda.set_sync_debug_mode('warn')`, or trace with `with_stack=True`",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when syncs leave the device without work."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        facts = scene.traces
        cost = facts.sync
        table = facts.get("host_syncs")
        found = sum_rows(table, "idle_after_ns", ["call", "op", "place"])
        if cost.impact < policy.cost_note_share or not found:
            return
        (call, op, place), _, row = found[0]
        named = f"`{op}`" if op else f"`{call}`"
        at = parse_place(place, int(table["rank"][row]))
        where = f" at {at.file}:{at.line}" if at else ""
        same = (table["call"] == call) & (table["op"] == op) & (table["place"] == place)
        per_step = facts.count_per_step(table, same, inside=True)
        wait_ms = facts.per_step(float(table["sum_ns"][same].sum()), inside=True) / _NS_PER_MS
        idle_ms = (
            facts.per_step(float(table["idle_after_ns"][same].sum()), inside=True) / _NS_PER_MS
        )
        yield self.make_cost_finding(
            Told(
                f"{named}{where} makes the host of {name_who(cost)} wait for the device, "
                f"which is then "
                f"idle for {cost.share_on_ranks:.0%} of {name_share(facts)}",
                Confidence.LIKELY,
                [
                    cite(
                        "host_syncs",
                        row,
                        f"`{call}` {per_step:.3g} times a step: the host waits {wait_ms:.3g} "
                        f"ms, the "
                        f"device is idle {idle_ms:.3g} ms after it",
                    )
                ],
                blame=Blame(ranks=cost.uneven, where=[at] if at else []),
                details={
                    "call": call,
                    "op": op,
                    "place": place,
                    "per_step": round(per_step, 2),
                    "wait_ms_per_step": round(wait_ms, 4),
                },
            ),
            cost,
            policy.cost_warning_share,
        )
