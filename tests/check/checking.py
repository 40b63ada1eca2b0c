"""Running checks as `whystuck check` does, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from whystuck.check.check import Check, Context
from whystuck.check.policy import CheckPolicy, read_policy
from whystuck.check.report import make_report
from whystuck.check.runner import run_checks
from whystuck.evidence.finding import Finding, Report
from whystuck.evidence.nodes.checks import CheckResult

_ROOT = Path(__file__).parents[2]
_DEVICE_CHECKS = """
import sys, msgspec
from pathlib import Path
from tests.check.checking import make_policy, run_check
from whystuck.check.checks import choose_checks
count, deadline_s = int(sys.argv[2]), float(sys.argv[3])
policy = make_policy(
    device={"count": count}, deadlines={name: deadline_s for name in ("device", "default")}
)
found = [
    one
    for check in choose_checks(["device", "pcie", "link", "p2p"])[1:]
    for one in run_check(check, policy=policy, root=Path(sys.argv[1]))
]
sys.stdout.buffer.write(msgspec.json.encode(found))
"""


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


def check_devices(
    root: Path, variables: Mapping[str, str], *, count: int = 0, deadline_s: float = 60.0
) -> dict[str, CheckResult]:
    """Make the checks of devices, by name, in a process of its own: it loads other libraries.

    Args:
        root: What is looked at in place of ``/``.
        variables: Those of the process, beside its path.
        count: How many devices the policy wants.
        deadline_s: How long each check may take.
    """
    done = subprocess.run(
        [sys.executable, "-c", _DEVICE_CHECKS, str(root), str(count), str(deadline_s)],
        capture_output=True,
        check=False,
        cwd=_ROOT,
        env={"PATH": "/usr/bin:/bin", **variables},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr.decode()
    return {one.name: one for one in msgspec.json.decode(done.stdout, type=list[CheckResult])}


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
