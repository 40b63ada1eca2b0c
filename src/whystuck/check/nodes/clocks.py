"""Clocks of nodes against each other (N406)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.nodes.meeting import ComparedCheck, Names
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N406"
_FEWEST = 3
_MOST_SHOWN = 16


class NodeClocks(ComparedCheck):
    """The offset of each clock, by the answers of the first node with the shortest way."""

    name = "clock"
    codes = (_CODE,)
    part = "nodes-clock"

    def settings(self, context: Context) -> dict[str, Any]:
        """Return how long the first node waits for the others."""
        return {"wait_s": context.policy.nodes.clock_wait_s}

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Compare each clock with the median of all."""
        rows = {int(rank): row for rank, row in told["clocks"].items()}
        known = {rank: row for rank, row in sorted(rows.items()) if "problem" not in row}
        offsets = {rank: float(row["offset_s"]) for rank, row in known.items()}
        errors = {rank: float(row["error_s"]) for rank, row in known.items()}
        middle = statistics.median(offsets.values()) if len(offsets) >= _FEWEST else 0.0
        facts = {
            names[rank]: f"{offset * 1e3:+.3g} ms ± {errors[rank] * 1e3:.2g} ms"
            for rank, offset in list(offsets.items())[:_MOST_SHOWN]
        }
        spread = max(offsets.values(), default=0.0) - min(offsets.values(), default=0.0)
        silent = [rank for rank, row in rows.items() if "problem" in row]
        why = next((str(row["problem"]) for row in rows.values() if "problem" in row), "")
        problems = _judge(offsets, errors, middle, names, context)
        return self.make_result(
            list(problems),
            facts=facts,
            figures={"spread_ms": spread * 1e3},
            reason=f"not measured on {names.join(silent)}: {why}" if silent else "",
        )


def _judge(
    offsets: Mapping[int, float],
    errors: Mapping[int, float],
    middle: float,
    names: Names,
    context: Context,
) -> Iterator[CheckProblem]:
    policy, most_s = context.policy.clock, context.policy.nodes.max_clock_offset_s
    for rank, offset in offsets.items():
        off_s = offset - middle
        if abs(off_s) - errors[rank] <= most_s:
            continue
        way = "ahead of" if off_s > 0 else "behind"
        is_one = len(offsets) >= _FEWEST
        others = "the median of all nodes" if is_one else f"that of {names[0]}"
        yield CheckProblem(
            code=_CODE,
            severity="error" if abs(off_s) > policy.error_offset_s else "warning",
            text=f"the clock of {names[rank]} is {abs(off_s):.3g} s {way} {others}, more than "
            f"{most_s:g} s",
            subject=names[rank],
            because=(
                f"measured to ± {errors[rank] * 1e3:.2g} ms, by the answer that came soonest",
            ),
            remedies=(
                "start a time service: `systemctl enable --now chronyd`, or systemd-timesyncd",
                "`chronyc tracking` on both nodes",
            ),
            measures={"offset_ms": off_s * 1e3, "threshold_ms": most_s * 1e3},
            details={"node_rank": rank},
            # Of two clocks, nobody knows which one is right.
            nodes=(names[rank],) if is_one else (),
        )
