"""Products of matrices: the same bits each time, and how fast (N423, N424)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whystuck.check.check import Context
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_SLOW, _WRONG = "N423", "N424"
_FEWEST_PEERS = 3


class Gemm(TorchCheck):
    """One product of matrices, again and again, on each device or else on the host."""

    name = "gemm"
    codes = (_SLOW, _WRONG)
    part = "gemm"

    def settings(self, context: Context) -> dict[str, Any]:
        """Return for how long each device computes."""
        policy = context.policy.gemm
        return {"seconds": policy.deep_seconds if context.is_deep else policy.seconds}

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Compare bits with the first product, and speed with the policy and with peers."""
        rows = [row for row in told["rows"] if "problem" not in row]
        failed = [row for row in told["rows"] if "problem" in row]
        problems = [
            *(one for row in failed for one in _judge_failed(row)),
            *(one for row in rows for one in _judge_bits(row)),
            *(one for row in rows for one in _judge_speed(row, rows, context)),
            *(one for row in rows for one in _judge_slowdown(row, context)),
        ]
        facts = {str(row["device"]): _describe(row) for row in rows}
        figures = {f"{row['device']}_tflops": float(row["tflops"]) for row in rows}
        return self.make_result(problems, facts=facts, figures=figures)


def _judge_failed(row: Mapping[str, Any]) -> Iterator[CheckProblem]:
    yield CheckProblem(
        code=_WRONG,
        severity="error",
        text=f"device {row['device']} cannot multiply matrices: {row['problem']}",
        subject=str(row["device"]),
        remedies=("`nvidia-smi -q`, `dmesg -T | grep -i xid`; reset the device or the node",),
        details={"device": str(row["device"]), "reason": str(row["problem"])},
    )


def _judge_bits(row: Mapping[str, Any]) -> Iterator[CheckProblem]:
    if not row["wrong"]:
        return
    yield CheckProblem(
        code=_WRONG,
        severity="error",
        text=f"{_name(row)} multiplies the same matrices to other bits: {row['wrong']} of "
        f"{row['repeats']} products differ from the first",
        subject=str(row["device"]),
        because=(
            f"{row['size']} × {row['size']}, {row['dtype']}, the same operands and program",
            f"{row['elements_off']} elements of the last product differ",
        ),
        measures={"wrong": row["wrong"], "repeats": row["repeats"]},
        details={"device": str(row["device"])},
    )


def _judge_speed(
    row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], context: Context
) -> Iterator[CheckProblem]:
    policy, speed = context.policy.gemm, float(row["tflops"])
    least, why = _find_least(row, context)
    if len(rows) >= _FEWEST_PEERS:
        middle = statistics.median(float(one["tflops"]) for one in rows)
        by_peers = middle * (1 - policy.max_below_median_share)
        if by_peers > least:
            least, why = by_peers, f"the median of {len(rows)} devices is {middle:.4g}"
    if speed >= least:
        return
    yield CheckProblem(
        code=_SLOW,
        text=f"{_name(row)} multiplies matrices with {speed:.3g} TFLOP/s, below {least:.3g}",
        subject=str(row["device"]),
        because=(
            f"{row['size']} × {row['size']}, {row['dtype']}, the best of {row['repeats']}",
            *((why,) if why else ()),
        ),
        remedies=_advise(row),
        measures={"tflops": speed, "threshold_tflops": least},
        details={"device": str(row["device"])},
    )


def _judge_slowdown(row: Mapping[str, Any], context: Context) -> Iterator[CheckProblem]:
    """Judge a device that gets slower while it computes, as one does that gets too hot."""
    best, last = float(row["tflops"]), float(row["last_tflops"])
    least = best * (1 - context.policy.gemm.max_slowdown_share)
    if not context.is_deep or row["device"] == "cpu" or last >= least:
        return
    yield CheckProblem(
        code=_SLOW,
        text=f"{_name(row)} gets slower while it computes: {last:.3g} TFLOP/s after "
        f"{best:.3g}, below {least:.3g}",
        subject=str(row["device"]),
        remedies=_advise(row),
        measures={"tflops": last, "threshold_tflops": least},
        details={"device": str(row["device"])},
    )


def _find_least(row: Mapping[str, Any], context: Context) -> tuple[float, str]:
    policy = context.policy.gemm
    if row["device"] == "cpu":
        threads = max(1, int(row["threads"]))
        least = policy.min_host_gflops_per_core
        return least * threads / 1e3, f"{threads} threads, {least:g} GFLOP/s each"
    for name, least in policy.min_device_tflops.items():
        if name in str(row["name"]):
            return least, f"the policy has {least:g} for {name}"
    return 0.0, ""


def _advise(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["device"] == "cpu":
        return (
            "`top`: does somebody else use the CPUs? `whystuck check --only cgroup` tells a quota",
        )
    return ("`nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE` tells what holds it back",)


def _name(row: Mapping[str, Any]) -> str:
    return "the host" if row["device"] == "cpu" else f"device {row['device']} ({row['name']})"


def _describe(row: Mapping[str, Any]) -> str:
    same = "same bits" if not row["wrong"] else f"{row['wrong']} with other bits"
    return f"{row['tflops']:.3g} TFLOP/s {row['dtype']}, {row['repeats']} products, {same}"
