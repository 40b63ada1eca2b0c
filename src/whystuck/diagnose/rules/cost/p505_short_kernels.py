"""P505 short-kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, name_who, pick_verb, shorten
from whystuck.diagnose.traces.costs import Cost, TraceFacts, name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Confidence, Finding

_NS_PER_MS = 1e6
_NS_PER_US = 1e3
_MAX_NAMES = 5


class ShortKernels(CostRule):
    """Much of the device's time goes into kernels of some microseconds each.

    ## What it means

    A kernel of a few microseconds cannot fill the device: it reads and writes memory, does
    little, and the next one does the same again. Fused into one, they read and write once.

    ## How it is found

    From kernels that compute and take less than 10 µs, with the gaps between them in which the
    next one was queued already. Gaps in which the host was late are in P502. `share_of_step` is the
    time that they take; a part of it stays when they are fused. `details`: `kernels` (names, most
    time first), `ops` (those that launch them, where the trace tells), `count_per_step`,
    `mean_us`.

    ## False alarms

    Small models, and steps of inference: there the host is the limit (P502).

    ## What to do

    Fuse: compile the part of the model they come from, or use fused ops.
    """

    code = "P505"
    name = "short-kernels"
    remedies: ClassVar[tuple[str, ...]] = (
        "`torch.compile` the modules that these kernels come from: it fuses elementwise work",
        (
            "use fused forms: `optim.AdamW(..., fused=True)`, fused norms and losses, "
            "`F.scaled_dot_product_attention`; clip gradients with `foreach=True`"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when short kernels take much time."""
        facts = scene.traces
        cost = Cost(facts.time, facts.short.ns)
        table, rows = facts.get("short_kernels"), facts.is_short
        count = facts.count_per_step(table, rows)
        if cost.impact < policy.short_note_share or count < policy.short_min_count:
            return
        found = sum_rows(table, "sum_ns", ["name"], rows)
        (name,), spent, row = found[0]
        total = max(int(table["count"][rows].sum()), 1)
        mean_us = float(table["sum_ns"][rows].sum()) / total / _NS_PER_US
        names = [key[0] for key, _, _ in found[:_MAX_NAMES]]
        yield self.make_cost_finding(
            Told(
                f"{name_who(cost)} {pick_verb(cost, 'spends', 'spend')} {cost.share:.0%} of "
                f"{name_share(facts)} in {count:.0f} short kernels of {mean_us:.3g} µs each",
                Confidence.CERTAIN,
                [
                    cite(
                        "short_kernels",
                        row,
                        f"`{shorten(name)}` takes {facts.per_step(spent) / _NS_PER_MS:.3g} ms "
                        f"a step",
                    )
                ],
                details={
                    "kernels": [shorten(name) for name in names],
                    "ops": find_ops(facts, names),
                    "count_per_step": round(count, 1),
                    "mean_us": round(mean_us, 2),
                },
            ),
            cost,
            policy.short_warning_share,
        )


def find_ops(facts: TraceFacts, kernels: Sequence[str]) -> list[str]:
    """Find the outermost ops that launch some kernels, most time first."""
    table = facts.get("op_kernels")
    if not len(table):
        return []
    found = sum_rows(table, "sum_ns", ["outer_op"], np.isin(table["kernel"], list(kernels)))
    return [key[0] for key, _, _ in found if key[0]][:_MAX_NAMES]
