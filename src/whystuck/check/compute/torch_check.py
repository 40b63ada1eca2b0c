"""Checks that need torch: the Python of the job makes them, and here they are judged.

Torch is imported once, by a process that touches no device. It forks a child for each check, so
that a device that hangs costs that check alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckResult, Outcome

_PROGRAM = Path(__file__).with_name("in_job") / "torch_program.py"
_TAIL_BYTES = 4096
_NO_PYTHON = "there is no Python on PATH: activate the environment of the job"


class TorchCheck(Check):
    """A check of which the job's Python measures one part.

    Attributes:
        part: The name of the part in ``in_job/torch_program.py``.
    """

    part: ClassVar[str]
    is_alone = True

    def settings(self, context: Context) -> dict[str, Any]:
        """Return what the part is told."""
        del context
        return {}

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Compare what the part measured with the policy."""
        raise NotImplementedError


def run_torch_checks(
    checks: Sequence[TorchCheck],
    context: Context,
    on_result: Callable[[CheckResult], None],
    gate: int = subprocess.DEVNULL,
) -> None:
    """Run checks in the job's Python, and judge what it tells.

    Args:
        checks: The checks.
        context: What they are told.
        on_result: Called with each result.
        gate: The end of a pipe: torch is imported at once, and nothing is measured before the
            other end is closed.
    """
    left = {check.part: check for check in checks}
    reason: str | None = _NO_PYTHON
    pythons = find_pythons(context) if context.pythons is None else context.pythons
    for python in pythons:
        reason = _run_in(python, left, context, on_result, gate)
        if reason is None:
            return
    _tell_all(list(left.values()), on_result, Outcome.SKIPPED, reason or "")


def find_pythons(context: Context) -> tuple[str, ...]:
    """Return the Python of the job, as its shell would find it, and our own."""
    path = context.environment.get("PATH")
    found = (
        shutil.which("python", path=path) or shutil.which("python3", path=path),
        sys.executable,
    )
    return tuple(dict.fromkeys(python for python in found if python))


def _run_in(
    python: str,
    left: dict[str, TorchCheck],
    context: Context,
    on_result: Callable[[CheckResult], None],
    gate: int,
) -> str | None:
    """Run checks in one Python, and take those that it tells of; return why it has no torch."""
    limit_s = context.policy.deadlines["part-deep" if context.is_deep else "part"]
    wanted = {
        check.part: {"deadline_s": limit_s, **check.settings(context)} for check in left.values()
    }
    # In memory: a pipe that nobody reads would stop a program that has much to say.
    said = os.fdopen(os.memfd_create("whystuck-check"), "w+b")
    with (
        said,
        subprocess.Popen(
            [python, str(_PROGRAM), json.dumps(wanted)],
            stdin=gate,
            stdout=subprocess.PIPE,
            stderr=said,
            env=dict(context.environment) | {"WHYSTUCK_DISABLE": "1"},
        ) as process,
    ):
        for line in process.stdout or ():
            told = _parse_line(line)
            if told.get("part") == "import":
                return str(told.get("skipped"))
            if told.get("part") in left:
                _take(told, left.pop(told["part"]), context, on_result)
        process.wait()
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
        errors = said.read().decode(errors="replace")
    last = next((one for one in reversed(errors.splitlines()) if one.strip()), "")
    reason = f"it ended without an answer: {last}" if last else "it ended without an answer"
    _tell_all(list(left.values()), on_result, Outcome.INCOMPLETE, reason)
    return None


def _parse_line(line: bytes) -> dict[str, Any]:
    """Read one line of the program; torch may print others."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _take(
    told: Mapping[str, Any],
    check: TorchCheck,
    context: Context,
    on_result: Callable[[CheckResult], None],
) -> None:
    """Judge what one part told."""
    if told.get("skipped"):
        result = _make(check, Outcome.SKIPPED, str(told["skipped"]))
    elif told.get("problem"):
        result = _make(check, Outcome.INCOMPLETE, str(told["problem"]))
    else:
        try:
            result = check.judge(told, context)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            # Other nodes may have another version of us, and tell other things.
            result = _make(check, Outcome.INCOMPLETE, f"the answer is not understood: {error!r}")
    on_result(replace(result, took_s=float(told.get("took_s", 0.0))))


def _tell_all(
    checks: Sequence[TorchCheck],
    on_result: Callable[[CheckResult], None],
    outcome: Outcome,
    reason: str,
) -> None:
    for check in checks:
        on_result(_make(check, outcome, reason))


def _make(check: Check, outcome: Outcome, reason: str) -> CheckResult:
    name, subject = check.name, check.subject
    return CheckResult(name=name, subject=subject, outcome=outcome, reason=reason)
