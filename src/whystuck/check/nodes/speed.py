"""Nodes that multiply matrices slower than the others (N423)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.nodes.meeting import ComparedCheck, Names
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N423"
_FEWEST = 3
_HOST = "host"


class NodeSpeed(ComparedCheck):
    """The products of matrices that each node has measured by itself, compared."""

    name = "gemm"
    codes = (_CODE,)
    part = "nodes-gemm"

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Compare nodes with the same kind of device."""
        kinds = defaultdict[str, dict[int, float]](dict)
        for rank in names.ranks:
            for kind, speed in told["tflops"].get(str(rank), {}).items():
                kinds[str(kind)[:80]][rank] = float(speed)
        problems: list[CheckProblem] = []
        facts: dict[str, str] = {}
        for kind, speeds in kinds.items():
            middle = statistics.median(speeds.values())
            least = min(speeds.values())
            facts[kind] = (
                f"{least:.3g} to {max(speeds.values()):.3g} TFLOP/s on {len(speeds)} nodes"
            )
            problems += _judge(kind, speeds, middle, names, context)
        reason = "" if kinds else "no node has measured it"
        return self.make_result(problems, facts=facts, reason=reason)


def _judge(
    kind: str, speeds: Mapping[int, float], middle: float, names: Names, context: Context
) -> Iterator[CheckProblem]:
    if len(speeds) < _FEWEST:
        return
    is_host = kind.startswith(_HOST)
    policy = context.policy
    share = (
        policy.nodes.max_host_below_median_share
        if is_host
        else (policy.gemm.max_below_median_share)
    )
    least = middle * (1 - share)
    for rank, speed in speeds.items():
        if speed < least:
            yield CheckProblem(
                code=_CODE,
                text=f"{names[rank]} multiplies matrices with {speed:.3g} TFLOP/s ({kind}), below "
                f"{least:.3g}",
                subject=names[rank],
                because=(f"the median of {len(speeds)} nodes is {middle:.3g}",),
                remedies=("`whystuck check --deep` on that node; leave it out of the job",),
                measures={"tflops": speed, "threshold_tflops": least},
                details={"node_rank": rank, "device": kind},
                nodes=(names[rank],),
            )
