"""All-reduce among processes of this node: exact sums, and the bus bandwidth (N419, N420)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_WRONG, _SLOW = "N419", "N420"
_MOST_RANKS = 2
# As nccl-tests counts, so that figures can be compared.
BUS_BANDWIDTH = "busbw = 2(n-1)/n × size / time, time: the slowest rank's median"


class AllReduce(TorchCheck):
    """Sums of integers over ranks on this node: over NCCL with two devices or more, else gloo."""

    name = "allreduce"
    codes = (_WRONG, _SLOW)
    part = "allreduce"

    def settings(self, context: Context) -> dict[str, Any]:
        """Return size, repeats, and how many ranks there are without devices."""
        policy = context.policy.allreduce
        ranks = count_ranks()
        sizes = [kib << 10 for kib in policy.sweep_kib] if context.is_deep else []
        return {
            "megabytes": policy.megabytes,
            "repeats": policy.repeats,
            "ranks": ranks,
            "sweep": sizes,
        }

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Look for wrong elements, then for the speed."""
        rows, ranks = told["rows"], int(told["ranks"])
        slowest = max(rows, key=lambda row: float(row["median_s"]))
        seconds = max(float(slowest["median_s"]), 1e-9)
        algbw = float(told["bytes"]) / seconds / 1e9
        busbw = algbw * 2 * (ranks - 1) / ranks
        problems = [*_judge_sums(rows, told), *_judge_speed(busbw, slowest, told, context)]
        facts = {
            "op": f"all_reduce, {told['backend']}, n={ranks}, {told['bytes'] >> 20} MiB float32",
            "bus bandwidth": f"{busbw:.3g} GB/s ({BUS_BANDWIDTH})",
            "sums": "exact" if not any(row["wrong"] for row in rows) else "wrong",
        }
        for size, figure in _list_sweep(rows, self.settings(context)["sweep"], ranks):
            facts[f"{size >> 10} KiB"] = f"{figure:.3g} GB/s"
        figures = {"busbw_gbps": busbw, "algbw_gbps": algbw, "ranks": float(ranks)}
        return self.make_result(problems, facts=facts, figures=figures)


def count_ranks() -> int:
    """Return how many processes take part where there are no devices."""
    return max(2, min(_MOST_RANKS, len(os.sched_getaffinity(0))))


def _list_sweep(
    rows: list[Mapping[str, Any]], sizes: list[int], ranks: int
) -> Iterator[tuple[int, float]]:
    """Yield the bus bandwidth at each size, by the slowest rank."""
    for place, size in enumerate(sizes):
        seconds = max(float(row["sweep"][place]) for row in rows)
        yield size, size / max(seconds, 1e-9) / 1e9 * 2 * (ranks - 1) / ranks


def _judge_sums(rows: list[Mapping[str, Any]], told: Mapping[str, Any]) -> Iterator[CheckProblem]:
    wrong = [row for row in rows if row["wrong"]]
    if not wrong:
        return
    count = sum(int(row["wrong"]) for row in wrong)
    ranks = [int(row["rank"]) for row in wrong]
    first = wrong[0]
    which = f"local rank {ranks[0]}" if len(ranks) == 1 else f"local ranks {ranks}"
    yield CheckProblem(
        code=_WRONG,
        severity="error",
        text=f"all_reduce gives wrong sums on {which}: {count} elements, the first is number "
        f"{first['first_wrong']} of {first['elements']}",
        subject=str(told["backend"]),
        because=("each rank gives (i mod 1013) + rank in float32: all sums are known, and exact",),
        measures={"wrong": count, "elements": int(first["elements"])},
        details={"backend": str(told["backend"]), "local_ranks": ranks, "n": int(told["ranks"])},
    )


def _judge_speed(
    busbw: float, slowest: Mapping[str, Any], told: Mapping[str, Any], context: Context
) -> Iterator[CheckProblem]:
    policy = context.policy.allreduce
    least = policy.min_nccl_gbps if told["backend"] == "nccl" else policy.min_gloo_gbps
    if busbw >= least:
        return
    yield CheckProblem(
        code=_SLOW,
        text=f"all_reduce over {told['backend']} among {told['ranks']} processes of this node has "
        f"a bus bandwidth of {busbw:.3g} GB/s, below {least:g}",
        subject=str(told["backend"]),
        because=(
            BUS_BANDWIDTH,
            f"{told['bytes']} bytes took {float(slowest['median_s']) * 1e3:.3g} ms on local rank "
            + str(slowest["rank"]),
        ),
        measures={"busbw_gbps": busbw, "threshold_gbps": least},
        details={"backend": str(told["backend"]), "n": int(told["ranks"])},
    )
