"""Versions that differ over nodes (N417)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.nodes.meeting import ComparedCheck, Names
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N417"
# Programs of one job may well run on different ones of these.
_LOOSE = ("kernel", "python")
_TITLES = {
    "torch": "torch",
    "nccl": "NCCL",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "cann": "CANN",
    "python": "Python",
    "kernel": "kernel",
    "NVIDIA driver": "NVIDIA driver",
    "AMD driver": "AMD driver",
    "Ascend driver": "Ascend driver",
}
_FEWEST = 3


class NodeVersions(ComparedCheck):
    """Torch, NCCL, CUDA, ROCm, CANN, drivers and kernel of all nodes."""

    name = "versions"
    codes = (_CODE,)
    part = "nodes-versions"

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Look for each thing whether all nodes have the same version."""
        del context
        facts: dict[str, str] = {}
        problems: list[CheckProblem] = []
        for key, title in _TITLES.items():
            groups = defaultdict[str, list[int]](list)
            for rank in names.ranks:
                version = told["facts"].get(str(rank), {}).get(key)
                groups[str(version or "none")[:80]].append(rank)
            if list(groups) == ["none"]:
                continue
            facts[title] = "; ".join(
                f"{version} on {names.join(ranks)}" if len(groups) > 1 else f"{version} on all"
                for version, ranks in groups.items()
            )
            if len(groups) > 1:
                problems.append(_make(key, title, groups, names))
        return self.make_result(problems, facts=facts)


def _make(key: str, title: str, groups: Mapping[str, list[int]], names: Names) -> CheckProblem:
    odd = find_odd(groups)
    sizes = sorted(groups.items(), key=lambda one: -len(one[1]))
    told = " and ".join(f"{version} on {names.join(ranks)}" for version, ranks in sizes)
    who = f"{names.join(odd)} has another {title} than the other nodes" if odd else ""
    if len(odd) > 1:
        who = f"{names.join(odd)} have another {title} than the other nodes"
    return CheckProblem(
        code=_CODE,
        severity="note" if key in _LOOSE else "warning",
        text=f"{who or f'nodes have different versions of {title}'}: {told}",
        subject=title,
        remedies=("use one image on all nodes",),
        details={"versions": {version: names.choose(ranks) for version, ranks in sizes}},
        nodes=names.choose(odd),
    )


def find_odd(groups: Mapping[str, list[int]]) -> list[int]:
    """Return those outside of a clear majority; nobody where there is none."""
    sizes = sorted((ranks for ranks in groups.values()), key=len)
    total = sum(map(len, sizes))
    if total < _FEWEST or 2 * len(sizes[-1]) <= total:
        return []
    return sorted(rank for ranks in sizes[:-1] for rank in ranks)
