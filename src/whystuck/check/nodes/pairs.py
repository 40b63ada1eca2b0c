"""Pairs of nodes: which node, or which link, is slow or broken (N421, N419)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from whystuck.check.check import Context
from whystuck.check.compute.allreduce import BUS_BANDWIDTH
from whystuck.check.nodes.meeting import ComparedCheck, Names
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_FAILED, _WRONG = "N421", "N419"
_MOST_SHOWN = 16
_MOST_PROBLEMS = 64
_MOST_CHARS = 200
# Partners with which a node is bad before it is called so.
_ENOUGH = 2
_NODE_REMEDIES = (
    "start the job without that node, and run `whystuck check --only nic,fabric` on it",
)
_PAIR_REMEDIES = (
    "`ip route get`, `ping -M do -s 1472` and `iperf3` between the two: cable, switch port, route",
)


class Pairs(ComparedCheck):
    """Sums of integers among pairs of nodes, in rounds with different partners."""

    name = "pairs"
    codes = (_FAILED, _WRONG)
    part = "nodes-pairs"

    @property
    def subject(self) -> str:
        """It is about nothing else."""
        return ""

    def settings(self, context: Context) -> dict[str, Any]:
        """Return how pairs are measured and compared."""
        policy = context.policy.nodes
        return {
            **make_reduce_settings(context),
            "least_gbps": {"gloo": policy.min_gloo_gbps, "nccl": policy.min_nccl_gbps},
            "share": policy.min_share_of_quartile,
            "rounds": policy.rounds,
        }

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Blame a node where it is bad with all partners, else the pair."""
        del context
        known = [one for one in told["known"] if not one["is_left"]]
        left = sorted({int(rank) for one in told["known"] for rank in one["row"].get("left", ())})
        limit, well = float(told["limit"]), {int(rank) for rank in told["well"]}
        bad = [one for one in known if one["is_bad"]]
        nodes = find_bad_nodes(bad, well)
        problems = [
            *(_make_node(node, bad, limit, names) for node in nodes),
            *(
                _make_pair(one, limit, names)
                for one in bad
                if not {int(rank) for rank in one["pair"]} & set(nodes)
            ),
        ]
        figures = [float(one["row"]["busbw"]) for one in known if "busbw" in one["row"]]
        facts = _list_facts(told, known, names)
        result = self.make_result(
            problems[:_MOST_PROBLEMS],
            facts=facts,
            figures={"pairs": float(len(known)), "rounds": float(told["rounds"])}
            | ({"min_busbw_gbps": min(figures)} if figures else {}),
        )
        if not left:
            return result
        return replace(
            result,
            outcome=Outcome.INCOMPLETE if not problems else result.outcome,
            reason=f"{names.join(left)} left the check",
        )


def make_reduce_settings(context: Context) -> dict[str, Any]:
    """Return how groups of nodes sum numbers."""
    policy = context.policy.nodes
    return {
        "sizes": {"gloo": policy.megabytes, "nccl": policy.device_megabytes},
        "limits_s": {"gloo": policy.pair_s, "nccl": policy.device_pair_s},
        "repeats": policy.repeats,
        "budget_s": policy.budget_s,
    }


def find_bad_nodes(bad: Sequence[Mapping[str, Any]], well: set[int]) -> list[int]:
    """Return the nodes that are bad with two partners or more, of which one is well elsewhere."""
    partners: dict[int, set[int]] = {}
    for one in bad:
        low, high = (int(rank) for rank in one["pair"])
        partners.setdefault(low, set()).add(high)
        partners.setdefault(high, set()).add(low)
    return sorted(
        node
        for node, others in partners.items()
        if node not in well and len(others) >= _ENOUGH and others & well
    )


def _list_facts(
    told: Mapping[str, Any], known: Sequence[Mapping[str, Any]], names: Names
) -> dict[str, str]:
    facts = {}
    measured = next((one["row"] for one in known if "busbw" in one["row"]), None)
    if measured is not None:
        facts["op"] = f"all_reduce, {told['backend']}, n={measured['ranks']}, float32"
        facts["bus bandwidth"] = BUS_BANDWIDTH
    for one in sorted(known, key=lambda one: one["row"].get("busbw", 0.0))[:_MOST_SHOWN]:
        facts[_name_pair(one, names)] = _describe(one)
    return facts


def _name_pair(one: Mapping[str, Any], names: Names) -> str:
    low, high = one["pair"]
    return f"{names[low]} - {names[high]}"


def _describe(one: Mapping[str, Any]) -> str:
    row = one["row"]
    if "problem" in row:
        return str(row["problem"])[:_MOST_CHARS]
    wrong = ", wrong sums" if one["is_wrong"] else ""
    return f"{row['busbw']:.3g} GB/s with {_size(row)}{wrong}"


def _size(row: Mapping[str, Any]) -> str:
    size = int(row["bytes"])
    return f"{size / (1 << 20):.3g} MiB" if size >= 1 << 20 else f"{size / 1024:.3g} KiB"


def _make_node(
    node: int, bad: Sequence[Mapping[str, Any]], limit: float, names: Names
) -> CheckProblem:
    own = [one for one in bad if node in one["pair"]]
    best = max((float(one["row"]["busbw"]) for one in own if "busbw" in one["row"]), default=0.0)
    are_wrong = all(one["is_wrong"] for one in own)
    is_dead = all("problem" in one["row"] for one in own)
    others = names.join([rank for one in own for rank in one["pair"] if rank != node])
    if are_wrong:
        text = f"all_reduce with {names[node]} gives wrong sums, with {others}"
    elif is_dead:
        text = f"{names[node]} cannot exchange data with {others}: {_describe(own[0])}"
    else:
        figure = f"{best:.3g} GB/s at most, below {limit:.3g}"
        text = f"{names[node]} is slow with {others}: bus bandwidth {figure}"
    return CheckProblem(
        code=_WRONG if are_wrong else _FAILED,
        severity="error" if are_wrong or is_dead else "warning",
        text=text,
        subject=names[node],
        because=(
            *(f"{_name_pair(one, names)}: {_describe(one)}" for one in own),
            "its partners are well with others",
            *_define(own),
        ),
        remedies=_NODE_REMEDIES,
        measures={"busbw_gbps": best, "threshold_gbps": limit},
        details={"node_rank": node, "pairs": [list(one["pair"]) for one in own]},
        nodes=(names[node],),
    )


def _make_pair(one: Mapping[str, Any], limit: float, names: Names) -> CheckProblem:
    row, pair = one["row"], f"the pair {_name_pair(one, names)}"
    if one["is_wrong"]:
        text = f"all_reduce of {pair} gives wrong sums"
    elif "problem" in row:
        text = f"{pair} cannot exchange data: {_describe(one)}"
    else:
        text = f"{pair} is slow: bus bandwidth {row['busbw']:.3g} GB/s, below {limit:.3g}"
    return CheckProblem(
        code=_WRONG if one["is_wrong"] else _FAILED,
        severity="error" if one["is_wrong"] or "problem" in row else "warning",
        text=text,
        subject=_name_pair(one, names),
        because=(
            f"measured {one['times']} times" if one["times"] > 1 else "measured once",
            *_define([one]),
        ),
        remedies=_PAIR_REMEDIES,
        measures={"busbw_gbps": float(row.get("busbw", 0.0)), "threshold_gbps": limit},
        details={"pair": [int(rank) for rank in one["pair"]], "names": names.choose(one["pair"])},
        nodes=(),
    )


def _define(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    measured = next((one["row"] for one in rows if "busbw" in one["row"]), None)
    if measured is not None:
        yield f"all_reduce, n={measured['ranks']}, {_size(measured)}; {BUS_BANDWIDTH}"
