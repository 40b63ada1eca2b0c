"""The memory of the node, and whether processes wait for it (N426)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N426"
_MB = 1 << 20
_FIELD = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_SOME = re.compile(r"^some avg10=([\d.]+)", re.MULTILINE)


class Memory(Check):
    """Memory that is available, and the pressure on it."""

    name = "memory"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Compare what is free with what jobs need."""
        text = context.read_text("/proc/meminfo")
        sizes = {name: int(value) << 10 for name, value in _FIELD.findall(text)}
        pressure = read_pressure(context, "memory")
        facts = {}
        figures = {}
        if "MemTotal" in sizes:
            total, free = sizes["MemTotal"], sizes.get("MemAvailable", 0)
            facts["memory"] = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
            figures = {"available_mb": free / _MB, "total_mb": total / _MB}
        for name in ("cpu", "io", "memory"):
            if (share := read_pressure(context, name)) is not None:
                figures[f"{name}_pressure_percent"] = share
        problems = [*_judge_size(sizes, context), *_judge_pressure(pressure, context)]
        reason = "" if sizes else "/proc/meminfo cannot be read"
        return self.make_result(problems, facts=facts, figures=figures, reason=reason)


def read_pressure(context: Context, name: str) -> float | None:
    """Return the share of the last ten seconds in which some process waited, in percent."""
    found = _SOME.search(context.read_text(f"/proc/pressure/{name}"))
    return float(found[1]) if found else None


def _judge_size(sizes: dict[str, int], context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.memory
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    least = min(policy.min_available_mb * _MB, total // 2)
    least = max(least, int(total * policy.min_available_share))
    if not total or free >= least:
        return
    yield CheckProblem(
        code=_CODE,
        severity="error" if free < policy.error_available_mb * _MB else "warning",
        text=f"only {free // _MB} MB of {total // _MB} MB memory are available, below "
        f"{least // _MB} MB",
        because=(f"MemAvailable is {free >> 10} kB",),
        measures={"available_mb": free / _MB, "threshold_mb": least / _MB},
    )


def _judge_pressure(share: float | None, context: Context) -> Iterator[CheckProblem]:
    most = context.policy.memory.max_pressure_percent
    if share is None or share <= most:
        return
    yield CheckProblem(
        code=_CODE,
        text=f"in {share:g} % of the last ten seconds a process waited for memory, more than "
        f"{most:g} %",
        subject="pressure",
        because=("/proc/pressure/memory: some avg10",),
        measures={"pressure_percent": share, "threshold_percent": most},
    )
