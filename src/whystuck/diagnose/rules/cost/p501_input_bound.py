"""P501 input-bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, cite_time, name_who, pick_verb
from whystuck.diagnose.traces.costs import name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Confidence, Finding

_NS_PER_MS = 1e6


class InputBound(CostRule):
    """The device waits for input: it has nothing to do while the host asks the data loader.

    ## What it means

    The next batch is not there when the step needs it. Workers of the data loader, the storage or
    the work on each sample are slower than the device.

    ## How it is found

    From the time in which the host is in the data loader's `next` and the device has nothing to
    do. A loader that works while the device computes costs nothing, and is not told. Ranks are
    named only where they wait much more than their peers; then their own input, host or storage is
    slower. `share_of_step` is the share of the steps of all ranks, `share_on_ranks` that of the
    ranks named. `details`: `loader` (the call that takes most), `waits_per_step`, `loader_ms`
    (all time in it, for each step, hidden or not).

    ## False alarms

    A trace of the first steps of an epoch, in which workers start. In a trace without work of
    devices, all time in the loader counts.

    ## What to do

    Give the loader more workers and let them run ahead; move work on samples out of the step.
    """

    code = "P501"
    name = "input-bound"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "raise `num_workers` of the DataLoader (0 loads in the training process), with "
            "`prefetch_factor=4`, `persistent_workers=True` and `pin_memory=True`"
        ),
        "decode, tokenise or augment beforehand, or on the device; keep the data on a local disk",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when ranks wait for data."""
        facts = scene.traces
        cost = facts.data_wait
        if cost.impact < policy.cost_note_share:
            return
        table = facts.get("data_waits")
        inside = table["step"] >= 0 if facts.has_steps else table["step"] >= -1
        loaders = sum_rows(table, "exposed_ns", ["name"])
        device = "device" if facts.has_device else "host"
        because = cite_time(facts, cost, "data_wait", f"the {device} waits for data")
        details: dict[str, object] = {"loader": "", "waits_per_step": 0, "loader_ms": 0}
        if loaders:
            (loader,), _, row = loaders[0]
            ms = facts.per_step(float(table["sum_ns"][inside].sum()), inside=True) / _NS_PER_MS
            details = {
                "loader": loader,
                "waits_per_step": round(facts.count_per_step(table, inside, inside=True), 2),
                "loader_ms": round(ms, 3),
            }
            because.append(cite("data_waits", row, f"the host is in `{loader}` meanwhile"))
        who, waits = name_who(cost), pick_verb(cost, "waits", "wait")
        yield self.make_cost_finding(
            Told(
                f"{who} {waits} for data for {cost.share_on_ranks:.0%} of {name_share(facts)}",
                Confidence.CERTAIN,
                because,
                details=details,
            ),
            cost,
            policy.cost_warning_share,
        )
