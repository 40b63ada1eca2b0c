"""All-reduce over all nodes: exact sums, and the bus bandwidth (N419, N420)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.compute.allreduce import BUS_BANDWIDTH
from whystuck.check.nodes.meeting import ComparedCheck, Names
from whystuck.check.nodes.pairs import make_reduce_settings
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_WRONG, _SLOW = "N419", "N420"
_FEWEST = 3


class NodeAllReduce(ComparedCheck):
    """Sums of integers over all ranks of all nodes."""

    name = "allreduce"
    codes = (_WRONG, _SLOW)
    part = "nodes-allreduce"

    def settings(self, context: Context) -> dict[str, Any]:
        """Return size and repeats."""
        return make_reduce_settings(context)

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Look for wrong elements, then for the speed."""
        policy = context.policy.nodes
        busbw, ranks = float(told["busbw"]), int(told["ranks"])
        op = f"all_reduce, {told['backend']}, n={ranks} on {len(told['members'])} nodes"
        size = f"{int(told['bytes']) / (1 << 20):.3g} MiB float32"
        least = policy.min_nccl_gbps if told["backend"] == "nccl" else policy.min_gloo_gbps
        problems = list(_judge_sums(told, names))
        if busbw < least:
            slowest = max(told["rows"], key=lambda row: float(row["median_s"]))
            problems.append(
                CheckProblem(
                    code=_SLOW,
                    text=f"all_reduce over {len(told['members'])} nodes has a bus bandwidth of "
                    f"{busbw:.3g} GB/s, below {least:g}",
                    subject=str(told["backend"]),
                    because=(
                        f"{BUS_BANDWIDTH}; {op}, {size}",
                        f"the slowest rank is one of {names[int(slowest['node'])]}",
                    ),
                    remedies=("`whystuck check --only pairs` tells which node or link it is",),
                    measures={"busbw_gbps": busbw, "threshold_gbps": least},
                    details={"backend": str(told["backend"]), "n": ranks},
                    nodes=(),
                )
            )
        facts = {
            "op": f"{op}, {size}",
            "bus bandwidth": f"{busbw:.3g} GB/s, min over ranks ({BUS_BANDWIDTH})",
            "sums": "wrong" if told["wrong"] else "exact",
        }
        figures = {"busbw_gbps": busbw, "algbw_gbps": float(told["algbw"]), "ranks": float(ranks)}
        return self.make_result(problems, facts=facts, figures=figures)


def _judge_sums(told: Mapping[str, Any], names: Names) -> Iterator[CheckProblem]:
    wrong = [row for row in told["rows"] if row["wrong"]]
    if not wrong:
        return
    nodes = sorted({int(row["node"]) for row in wrong})
    is_one = len(nodes) == 1 and len(told["members"]) >= _FEWEST
    first = wrong[0]
    yield CheckProblem(
        code=_WRONG,
        severity="error",
        confidence="likely" if is_one else "certain",
        text=f"all_reduce over {len(told['members'])} nodes gives wrong sums on "
        f"{names.join(nodes)}: {sum(int(row['wrong']) for row in wrong)} elements, the first is "
        f"number {first['first_wrong']} of {first['elements']}",
        subject=str(told["backend"]),
        because=("each rank gives (i mod 1013) + rank in float32: all sums are known, and exact",),
        measures={"wrong": int(told["wrong"]), "elements": int(first["elements"])},
        details={"backend": str(told["backend"]), "n": int(told["ranks"]), "node_ranks": nodes},
        nodes=names.choose(nodes) if is_one else (),
    )
