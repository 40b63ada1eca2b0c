"""Running checks as `whystuck check` does, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from whystuck.check.check import Check, Context
from whystuck.check.policy import CheckPolicy, read_policy
from whystuck.check.report import make_report
from whystuck.check.runner import run_checks
from whystuck.evidence.finding import Finding, Report
from whystuck.evidence.nodes.checks import CheckResult


def make_policy(**tables: Mapping[str, object]) -> CheckPolicy:
    """Our thresholds, with some of them changed, by table."""
    policy = read_policy()
    changed = {}
    for name, values in tables.items():
        table = getattr(policy, name)
        is_plain = isinstance(table, dict)
        changed[name] = {**table, **values} if is_plain else replace(table, **values)
    return replace(policy, **changed)


def run_check(
    check: Check,
    *disks: Path,
    policy: CheckPolicy | None = None,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    pythons: Sequence[str] = (),
    is_deep: bool = False,
) -> list[CheckResult]:
    """Run one check of this node."""
    context = Context(
        policy=policy or read_policy(),
        node="n0",
        disks=disks,
        pythons=tuple(pythons),
        root=root,
        is_deep=is_deep,
        environment=environment or {"PATH": "/usr/bin:/bin"},
    )
    return run_checks([check], context)


def judge(results: Sequence[CheckResult]) -> Report:
    """The report that `whystuck check` would give."""
    return make_report(results, 0.0)


def find(results: Sequence[CheckResult], code: str) -> Finding:
    """The one finding of a code; it has a node, advice, and facts of its check."""
    found = [finding for finding in judge(results).findings if finding.code == code]
    assert len(found) == 1, [result.problems for result in results]
    assert found[0].culprits.nodes == ["n0"]
    assert found[0].remedies
    return found[0]


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Make files as /proc and /sys have them."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
