"""P503 exposed-communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.traces.cost_rule import (
    CostRule,
    Told,
    cite,
    cite_time,
    format_ns,
    name_rank,
    shorten,
)
from whystuck.diagnose.traces.costs import Cost, TraceFacts, name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.diagnose.traces.waits import find_waits
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.table import Table, text_column

_MAX_OPS = 3
_HALF = 0.5
_WAIT_REMEDIES = (
    (
        "see what the last rank does before its collectives: `whystuck trace merge` shows the "
        "ranks side by side, collectives.csv (`--tables`) who was last to each; where they are "
        "few, trace more iterations"
    ),
    "even out the work: sort or pack samples by length, give each rank as many tokens",
)
# What torch writes of groups that nobody described.
_NO_PURPOSE = frozenset({"", "undefined"})


class ExposedCommunication(CostRule):
    """Devices communicate while nothing computes.

    ## What it means

    Communication that lies under computation costs nothing; this one does. It either moves data
    (transfer), or waits for ranks that come later (wait).

    ## How it is found

    From the time in which kernels of communication run and no other. The wait that a late rank
    causes is in P504 and not here. Where traces of several ranks are there, their collectives are
    matched, and `details` tells what the rest is: `transfer_share` of it is from the last arrival
    to the end, `wait_share` is before. Where most of it is waits, the finding begins with the rank
    that was waited for longest (`last_rank`, last to `times_last` of the `collectives` in which
    that is known) and with the `worst` collective. It names no culprit: of few collectives it
    is not sure that a rank is late throughout, and of many it means imbalance: the last
    rank is another one each time, and no rank is faulty. Ops are added up over the groups that
    are for the same, as the trace describes them (`dp`, `tp`); what an op costs is told for the
    ranks that have it. `details`: `ops` and `groups` that cost most, `busbw_gbps` of the first.

    Of the breakdowns that HTA prints of all ranks, where each of them has as much time in which
    kernels run that do not compute.

    ## False alarms

    From one rank alone, waits for other ranks look like communication.

    ## What to do

    If it is transfer: overlap it, move less, or speed up links. If it is wait: even out the work.
    """

    code = codes.EXPOSED_COMMUNICATION
    name = "exposed-communication"
    needs = ("traces", "logs")
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
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        facts = scene.traces
        cost = Cost(facts.time, facts.comm.ns)
        if cost.impact < policy.comm_note_share:
            return
        details, cites, most = describe_ops(facts)
        summary = f"communication is exposed for {cost.share:.0%} of {name_share(facts)}"
        waits = None
        if facts.is_partial:
            summary += f", {most}" if most else ""
            summary += " (waits for ranks that were not traced are in it)"
        elif details["wait_share"] is not None and details["wait_share"] > _HALF:
            waits = find_waits(facts)
            details |= waits.details()
            cites = [*waits.cite(), *cites]
            lead = f"{waits.describe()}: " if waits.row >= 0 else ""
            summary = f"{lead}{summary}, most of it waits for others"
            summary += waits.describe_chance(facts, policy)
        else:
            summary += f", {most}" if most else ""
        found = self.make_cost_finding(
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
        # To overlap or to move less helps nobody who waits.
        yield found if waits is None else replace(found, remedies=list(_WAIT_REMEDIES))


@dataclass(frozen=True)
class _Part:
    """What an op costs in the groups that are for the same; those of rows are in ``comm_ops``.

    ``share`` is that of all ops, ``row`` the row that costs most, ``ranks`` those that have it.
    """

    op: str
    purpose: str
    groups: tuple[str, ...]
    ranks: tuple[int, ...]
    spent_ns: float
    share: float
    row: int

    @property
    def label(self) -> str:
        """Name the op and its groups."""
        if len(self.groups) > 1:
            return f"{shorten(self.op)} of the {len(self.groups)} {self.purpose} groups"
        return shorten(self.op) + "".join(f" of group {one}" for one in self.groups)


def describe_ops(facts: TraceFacts) -> tuple[dict[str, Any], list[Citation], str]:
    """Describe what is communicated.

    Args:
        facts: The traces.

    Returns:
        The details of the finding, what to cite for them, and what costs most in words.
    """
    calls = facts.get("comm_ops")
    # Of calls of the host it is not known whether they were exposed.
    parts = _find_parts(calls, "exposed_ns" if facts.has_device else "sum_ns")
    groups = dict.fromkeys(group for part in parts for group in part.groups)
    details: dict[str, Any] = {
        "ops": list(dict.fromkeys(part.op for part in parts if part.op))[:_MAX_OPS],
        "groups": list(groups)[:_MAX_OPS],
        "transfer_share": None,
        "wait_share": None,
        "busbw_gbps": None,
        "last_rank": None,
        "times_last": None,
        "collectives": None,
        "worst": None,
    }
    if not parts:
        kernels = facts.get("kernels")
        mine = kernels["class"] == "comm" if len(kernels) else None
        names = sum_rows(kernels, "sum_ns", ["name"], mine)
        details["ops"] = [key[0] for key, _, _ in names[:_MAX_OPS]]
        spent = [one for _, one, _ in names]
        most = _name_most(shorten(names[0][0][0]), spent[0] / max(sum(spent), 1)) if names else ""
        return details, [], most
    first = parts[0]
    a_step = " a step" if facts.has_steps else ""
    verb = "is exposed for" if facts.has_device else "takes"
    spent_ns = format_ns(facts.per_step(first.spent_ns, first.ranks))
    text = f"{first.label} {verb} {spent_ns}{a_step} {_name_whose(facts, first)}"
    table = facts.get("collective_groups")
    if len(table):
        _split(facts, table, details)
        details["busbw_gbps"] = _find_busbw(table, first)
    most = _name_most(first.label, first.share) if first.op else ""
    return details, [cite("comm_ops", first.row, text)], most


def _find_parts(calls: Table, column: str) -> list[_Part]:
    """Add up what ops cost, in groups of one purpose together; the costliest first."""
    if not len(calls) or column not in calls.columns:
        return []
    groups = calls["group"].tolist()
    descs = calls["group_desc"].tolist() if "group_desc" in calls.columns else groups
    # Of a layout each rank is in one group of many: by itself, each is only a part of the whole.
    told = zip(groups, descs, strict=True)
    purposes = [group if desc in _NO_PURPOSE else desc for group, desc in told]
    found = sum_rows(
        Table({**calls.columns, "purpose": text_column(purposes)}), column, ["op", "purpose"]
    )
    spent_in: dict[tuple[str, ...], dict[str, float]] = {key: {} for key, _, _ in found}
    ranks_of: dict[tuple[str, ...], set[int]] = {key: set() for key, _, _ in found}
    columns = (calls[name].tolist() for name in ("op", "group", "rank", "count", column))
    for what, op, group, rank, count, spent in zip(purposes, *columns, strict=True):
        mine = spent_in[op, what]
        mine[group] = mine.get(group, 0.0) + max(spent, 0.0)
        if count > 0:
            ranks_of[op, what].add(rank)
    total = sum(spent for _, spent, _ in found)
    parts = []
    for (op, what), spent, row in found:
        mine = spent_in[op, what]
        names = tuple(sorted(filter(None, mine), key=lambda name: -mine[name]))
        ranks = tuple(sorted(ranks_of[op, what]))
        parts.append(_Part(op, what, names, ranks, spent, spent / total if total else 0.0, row))
    return parts


def _name_most(what: str, share: float) -> str:
    """Say how much of all one part is; where nothing is known to be exposed, it is none."""
    if not share:
        return ""
    return f"{'most of it' if share > _HALF else 'the largest part'} {what}"


def _name_whose(facts: TraceFacts, part: _Part) -> str:
    if set(part.ranks) >= set(facts.time.ranks.tolist()):
        return "on each rank"
    if len(part.ranks) == 1:
        return f"on {name_rank(part.ranks[0])}"
    return f"on each of its {len(part.ranks)} ranks"


def _find_busbw(table: Table, part: _Part) -> float | None:
    """Find the bandwidth of the costliest size of an op."""
    rows = (table["op"] == part.op) & np.isin(table["group"], part.groups or ("",))
    kinds = sum_rows(table, "exposed_ns", ["bytes_to"], rows)
    busbw = float(table["busbw_gbps"][kinds[0][2]]) if kinds else 0.0
    return round(busbw, 2) if np.isfinite(busbw) and busbw > 0 else None


def _split(facts: TraceFacts, table: Table, details: dict[str, Any]) -> None:
    """Tell transfer from waits, where collectives of several ranks were matched."""
    known = table["wait_ns"] >= 0
    # Times of a group are those of one member; each rank is in some of the groups only.
    calls = facts.get("comm_ops")
    pairs = zip(calls["group"].tolist(), calls["rank"].tolist(), strict=True)
    members = Counter(group for group, _ in set(pairs))
    share = np.array([members[group] for group in table["group"][known].tolist()], dtype=np.float64)
    share /= len(facts.time)
    wait = float((table["wait_ns"][known] * share).sum())
    transfer = float((np.maximum(table["transfer_ns"][known], 0) * share).sum())
    if len(facts.time) == 1 or wait + transfer <= 0:
        return
    wait = max(wait - float(facts.late_suffered_ns.mean()), 0.0)
    details["wait_share"] = round(wait / max(wait + transfer, 1.0), 3)
    details["transfer_share"] = round(1 - details["wait_share"], 3)
