"""P503 exposed-communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.scene import Scene
from whystuck.diagnose.trace_facts import Cost, TraceFacts, name_share, sum_rows
from whystuck.diagnose.trace_rule import CostRule, Told, cite, cite_time, format_ns, shorten
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.table import Table

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
            "`backward_prefetch` and `forward_prefetch`; issue collectives early, `async_op=True`"
        ),
        (
            "move less: bf16 gradients (`bf16_compress_hook`), `no_sync()` while gradients "
            "accumulate, `HYBRID_SHARD` so that most of it stays in a node"
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
        if facts.is_partial:
            summary += " (waits for ranks that were not traced are in it)"
        elif details["wait_share"] is not None and details["wait_share"] > _HALF:
            summary += "; most of it waits for others, and no rank is late throughout"
        yield self.make_cost_finding(
            Told(
                summary,
                Confidence.LIKELY if facts.is_partial else Confidence.CERTAIN,
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
    calls = facts.summary.get("comm_ops")
    # Of calls of the host it is not known whether they were exposed.
    column = "exposed_ns" if facts.has_device else "sum_ns"
    found = sum_rows(calls, column, ["op", "group"])
    details: dict[str, Any] = {
        "ops": list(dict.fromkeys(op for (op, _), _, _ in found if op))[:_MAX_OPS],
        "groups": list(dict.fromkeys(group for (_, group), _, _ in found if group))[:_MAX_OPS],
        "transfer_share": None,
        "wait_share": None,
        "busbw_gbps": None,
    }
    if not found:
        kernels = facts.summary.get("kernels")
        mine = kernels["class"] == "comm" if len(kernels) else None
        names = sum_rows(kernels, "sum_ns", ["name"], mine)
        details["ops"] = [key[0] for key, _, _ in names[:_MAX_OPS]]
        return details, []
    (op, group), exposed, row = found[0]
    a_step = " a step" if facts.has_steps else ""
    verb = "is exposed for" if facts.has_device else "takes"
    label = f" of group {group}" if group else ""
    text = f"{op}{label} {verb} {format_ns(facts.per_step(exposed))}{a_step} on each rank"
    table = facts.summary.get("collective_groups")
    if len(table):
        _split(facts, table, details)
        details["busbw_gbps"] = _find_busbw(table, op, group)
    return details, [cite("comm_ops", row, text)]


def _find_busbw(table: Table, op: str, group: str) -> float | None:
    """Find the bandwidth of the costliest size of an op."""
    rows = (table["op"] == op) & (table["group"] == group)
    kinds = sum_rows(table, "exposed_ns", ["bytes_to"], rows)
    busbw = float(table["busbw_gbps"][kinds[0][2]]) if kinds else 0.0
    return round(busbw, 2) if np.isfinite(busbw) and busbw > 0 else None


def _split(facts: TraceFacts, table: Table, details: dict[str, Any]) -> None:
    """Tell transfer from waits, where collectives of several ranks were matched."""
    known = table["wait_ns"] >= 0
    wait = float(table["wait_ns"][known].sum())
    transfer = float(np.maximum(table["transfer_ns"][known], 0).sum())
    if len(facts.time) == 1 or wait + transfer <= 0:
        return
    wait = max(wait - float(facts.late_suffered_ns.mean()), 0.0)
    details["wait_share"] = round(wait / max(wait + transfer, 1.0), 3)
    details["transfer_share"] = round(1 - details["wait_share"], 3)
