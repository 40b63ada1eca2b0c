"""A small training on this node: ranks agree, and a second run has the same bits (N419, N424)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.compute.allreduce import count_ranks
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_REDUCED, _COMPUTED = "N419", "N424"
_AGAIN = ("run `whystuck check --deep` again, and take the node out of service",)


class Training(TorchCheck):
    """Data parallel training of a small model, twice from the same seed."""

    name = "training"
    codes = (_REDUCED, _COMPUTED)
    part = "training"

    def settings(self, context: Context) -> dict[str, Any]:
        """Return for how many steps."""
        return {"steps": context.policy.training.steps, "ranks": count_ranks()}

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Compare the ranks with each other, and the second run with the first."""
        del context
        rows = told["rows"]
        first, last = rows[0]["losses"][0][0], rows[0]["losses"][0][-1]
        problems = [
            *_judge_ranks(rows),
            *(problem for row in rows for problem in _judge_runs(row)),
            *_judge_loss(first, last),
        ]
        facts = {
            "model": f"2 layers, {told['backend']}, n={told['ranks']}",
            "steps": f"2 × {len(rows[0]['losses'][0])}",
            "loss": f"{first:.4g} to {last:.4g}",
        }
        slowest = max(float(row["step_s"]) for row in rows)
        return self.make_result(problems, facts=facts, figures={"step_ms": slowest * 1e3})


def _judge_ranks(rows: list[Mapping[str, Any]]) -> Iterator[CheckProblem]:
    """Judge parameters, which are the same on all ranks where gradients are."""
    for run in range(2):
        digests = [row["digests"][run] for row in rows]
        if len(set(digests)) > 1:
            yield CheckProblem(
                code=_REDUCED,
                severity="error",
                text=f"after training {run + 1}, the parameters of the ranks differ",
                subject="training",
                because=("all ranks begin alike, and use the mean of all gradients",),
                remedies=_AGAIN,
                details={"digests": digests},
            )
            return


def _judge_runs(row: Mapping[str, Any]) -> Iterator[CheckProblem]:
    """Judge losses of two runs from one seed."""
    one, two = row["losses"]
    odd = next((step for step, pair in enumerate(zip(one, two, strict=True)) if _differ(*pair)), -1)
    if odd >= 0:
        yield CheckProblem(
            code=_COMPUTED,
            severity="error",
            text=f"two trainings from the same seed differ on local rank {row['rank']} from step "
            f"{odd} on: loss {one[odd]:.9g} and {two[odd]:.9g}",
            subject="training",
            remedies=_AGAIN,
            details={"local_rank": row["rank"], "step": odd},
        )


def _differ(one: float, two: float) -> bool:
    return one != two and not (math.isnan(one) and math.isnan(two))


def _judge_loss(first: float, last: float) -> Iterator[CheckProblem]:
    if last < first:
        return
    yield CheckProblem(
        code=_COMPUTED,
        severity="error",
        text=f"a training that must learn does not: its loss goes from {first:.4g} to {last:.4g}",
        subject="training",
        remedies=_AGAIN,
        measures={"first_loss": first, "last_loss": last} if math.isfinite(last) else {},
    )
