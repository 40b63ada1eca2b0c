"""Versions of torch, NCCL and drivers, and what is known of them (N417, N418)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.check.host.facts import list_accelerators, read_nvidia_driver
from whystuck.diagnose.known_bad import find_known_bad, parse_version
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_DIFFER, _KNOWN_BAD = "N417", "N418"
# The oldest driver of each branch of CUDA, from the release notes of the CUDA toolkit (minor
# version compatibility).
_LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


class Versions(TorchCheck):
    """What the job's Python has, and whether its parts fit each other."""

    name = "versions"
    codes = (_DIFFER, _KNOWN_BAD)
    part = "versions"

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Compare the versions with each other and with a list of bad ones."""
        driver = read_nvidia_driver(context)
        problems = [
            *_judge_nccl(str(told.get("nccl", ""))),
            *_judge_driver(str(told.get("cuda", "")), driver),
        ]
        facts = _list_facts(told)
        # A device that torch does not see though there is one is told by the check of devices.
        if not told.get("cuda_available") and "NVIDIA" in list_accelerators(context):
            problems += _judge_unusable(told, driver)
        figures = {"devices": float(len(told.get("devices", ())))}
        reason = str(told.get("device_problem", ""))
        return self.make_result(problems, facts=facts, figures=figures, reason=reason)


def _list_facts(told: Mapping[str, Any]) -> dict[str, str]:
    devices = [str(one) for one in told.get("devices", ())]
    kinds = [f"{devices.count(name)} × {name}" for name in dict.fromkeys(devices)]
    is_there = {True: "available", False: "not available"}
    cuda, rocm, cann = (str(told.get(name) or "") for name in ("cuda", "rocm", "cann"))
    usable = is_there[bool(told.get("cuda_available"))]
    return {
        "Python": str(told.get("python", "")),
        "torch": str(told.get("torch", "")),
        "CUDA": f"{cuda}, {usable}" if cuda else "not in this build of torch",
        "ROCm": f"{rocm}, {usable}" if rocm else "not in this build of torch",
        "CANN": f"{cann}, {is_there[bool(told.get('npu_available'))]}" if cann else "no torch_npu",
        "NCCL": str(told.get("nccl") or "none"),
        "devices": ", ".join(kinds) or "none",
    }


def _judge_nccl(version: str) -> Iterator[CheckProblem]:
    for row in find_known_bad(version) if version else ():
        fixed = f"; {row.fixed} has it no more" if row.fixed else ""
        yield CheckProblem(
            code=_KNOWN_BAD,
            confidence="possible",
            text=f"NCCL {version} {row.trouble}{fixed}",
            subject="NCCL",
            because=(f"known by {row.source}",),
            remedies=(*((row.around,) if row.around else ()), "upgrade torch on all nodes"),
            details={"version": version, "fixed": row.fixed, "source": row.source},
        )


def _judge_driver(cuda: str, driver: str) -> Iterator[CheckProblem]:
    least = _LEAST_DRIVER.get((parse_version(cuda) or (0,))[0])
    if not driver or least is None or parse_version(driver) >= least:
        return
    wanted = ".".join(str(part) for part in least)
    yield CheckProblem(
        code=_DIFFER,
        severity="error",
        text=f"torch is built for CUDA {cuda}, which needs driver {wanted}; the driver is {driver}",
        subject="driver",
        remedies=(
            f"upgrade the driver to {wanted} or newer",
            "or take a torch for an older CUDA, e.g. `pip install torch --index-url .../cu118`",
        ),
        details={"versions": {"CUDA": cuda, "driver": driver}, "threshold": wanted},
    )


def _judge_unusable(told: Mapping[str, Any], driver: str) -> Iterator[CheckProblem]:
    if not told.get("cuda"):
        yield CheckProblem(
            code=_DIFFER,
            text=f"this node has devices of NVIDIA, and torch {told.get('torch')} is built "
            "without CUDA",
            subject="torch",
            remedies=("install a torch with CUDA in the environment of the job",),
            details={"versions": {"torch": str(told.get("torch")), "driver": driver}},
        )
