"""P503 exposed-communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.scene import Scene
from whystuck.diagnose.trace_facts import Cost, TraceFacts, name_share, sum_rows
from whystuck.diagnose.trace_rule import CostRule, Told, cite, cite_time, shorten
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.table import Table

_NS_PER_MS = 1e6
_MAX_OPS = 3
_HALF = 0.5


class ExposedCommunication(CostRule):
    """Devices communicate while nothing computes.

    ## What it means

    Communication that lies under computation costs nothing; this one does. It either moves data
    (transfer), or waits for ranks that come later (wait).

    ## How it is found

    From the time in which kernels of communication run and no other. The wait that a late rank
    causes is in P504 and not here. Where traces of several ranks are there, their collectives are
    matched, and `details` tells what the rest is: `transfer_share` of it is from the last arrival
    to the end, `wait_share` is before. A large wait without a late rank is imbalance: the last
    rank is another one each time, and no rank is faulty. `details`: `ops` and `groups` that cost
    most, `busbw_gbps` of the first of them.

    ## False alarms

    From one rank alone, waits for other ranks look like communication.

    ## What to do

    If it is transfer: overlap it, move less, or speed up links. If it is wait: even out the work.
    """

    code = "P503"
    name = "exposed-communication"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "overlap it: DDP `bucket_cap_mb` and `gradient_as_bucket_view=True`; FSDP "
            "`backward_prefetch` "
            "and `forward_prefetch`; issue collectives early with `async_op=True`"
        ),
        (
            "move less: bf16 gradients (`bf16_compress_hook`), `no_sync()` while gradients "
            "accumulate, "
            "hybrid sharding (`HYBRID_SHARD`) so that most of it stays in a node"
        ),
        "compare `busbw_gbps` in collective_groups.csv with nccl-tests on the same nodes",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when communication is exposed."""
        facts = scene.traces
        cost = Cost(facts.time, facts.comm.ns)
        if cost.impact < policy.comm_note_share:
            return
        details, cites = describe_ops(facts)
        summary = f"communication is exposed for {cost.share:.0%} of {name_share(facts)}"
        if details["ops"]:
            summary += f", most of it {shorten(details['ops'][0])}"
            if details["groups"]:
                summary += f" of group {details['groups'][0]}"
        if len(facts.time) == 1:
            summary += " (waits for other ranks are in it: only one was traced)"
        elif details["wait_share"] is not None and details["wait_share"] > _HALF:
            summary += "; most of it waits for ranks that come later, no single one"
        yield self.make_cost_finding(
            Told(
                summary,
                Confidence.CERTAIN if len(facts.time) > 1 else Confidence.LIKELY,
                [*cite_time(facts, cost, "exposed_comm", "communication is exposed"), *cites],
                blame=Blame(groups=details["groups"]),
                details=details,
            ),
            cost,
            policy.comm_warning_share,
        )


def describe_ops(facts: TraceFacts) -> tuple[dict[str, Any], list[Citation]]:
    """Describe what is communicated.

    Args:
        facts: The traces.

    Returns:
        The details of the finding, and what to cite for them.
    """
    table = facts.summary.get("collective_groups")
    found = sum_rows(table, "exposed_ns", ["op", "group"])
    details: dict[str, Any] = {
        "ops": list(dict.fromkeys(key[0] for key, _, _ in found if key[0]))[:_MAX_OPS],
        "groups": list(dict.fromkeys(key[1] for key, _, _ in found if key[1]))[:_MAX_OPS],
        "transfer_share": None,
        "wait_share": None,
        "busbw_gbps": None,
    }
    if not found:
        kernels = facts.summary.get("kernels")
        mine = kernels.take(kernels["class"] == "comm") if len(kernels) else kernels
        details["ops"] = [key[0] for key, _, _ in sum_rows(mine, "sum_ns", ["name"])[:_MAX_OPS]]
        return details, []
    _split(facts, table, details)
    (op, group), exposed, row = found[0]
    busbw = float(table["busbw_gbps"][row])
    if np.isfinite(busbw) and busbw > 0:
        details["busbw_gbps"] = round(busbw, 2)
    label = f" of group {group}" if group else ""
    ms = facts.per_step(exposed) / _NS_PER_MS
    text = f"{op}{label} is exposed for {ms:.3g} ms a step on each rank"
    return details, [cite("collective_groups", row, text)]


def _split(facts: TraceFacts, table: Table, details: dict[str, Any]) -> None:
    """Tell transfer from waits, where collectives of several ranks were matched."""
    wait = float(np.nansum(np.maximum(table["wait_ns"].astype(np.float64), 0)))
    transfer = float(np.nansum(np.maximum(table["transfer_ns"].astype(np.float64), 0)))
    if len(facts.time) == 1 or wait + transfer <= 0:
        return
    late = float(facts.late_wait.ns.sum())
    wait = max(wait - late, 0.0)
    details["wait_share"] = round(wait / (wait + transfer), 3) if wait + transfer else 0.0
    details["transfer_share"] = round(1 - details["wait_share"], 3)
