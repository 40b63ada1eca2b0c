"""What the kernel has logged of broken hardware and storage since it was started (N425)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from whystuck.check.check import Check, Context
from whystuck.collect.node.kernel_log import KernelLog as Reader
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome
from whystuck.parse.logs.scan import LogPatterns
from whystuck.parse.logs.signatures import Signature, load_signatures

_CODE = "N425"
# What a program does to itself or what memory it takes says nothing of the node.
_OF_PROGRAMS = frozenset({"crash", "gpu_app_fault", "gpu_secondary", "host_oom", "boot", "env"})
# Said at every start of a node, for ports without a cable too; the check of interfaces judges.
_COMMON = frozenset({"link.down"})
_GRAVE = frozenset({"fatal", "error", "by-code", "by-severity-word"})
_MOST_CHARS = 200


@dataclass
class _Seen:
    """Lines of one kind: how many, the last one, and when that was."""

    signature: Signature
    count: int = 0
    last: str = ""
    last_s: float = 0.0
    lines: list[str] = field(default_factory=list)


class KernelLog(Check):
    """Lines of the kernel about hardware and storage."""

    name = "kernel-log"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Read all that the kernel has kept."""
        reader = Reader(context.node, is_whole=True)
        text = reader.read()
        problem = reader.problem
        reader.close()
        if not text and problem:
            outcome = Outcome.SKIPPED
            reason = f"{problem}; it needs root, or `sysctl kernel.dmesg_restrict=0`"
            return CheckResult(name=self.name, outcome=outcome, reason=reason)
        problems, count = judge_lines(text, time.time(), context)
        facts = {"lines": f"{text.count(bytes([10]))} read, {count} about hardware or storage"}
        return self.make_result(problems, facts=facts)


def judge_lines(text: bytes, now_s: float, context: Context) -> tuple[list[CheckProblem], int]:
    """Return the problems that lines of the kernel tell, and how many lines are about such."""
    seen = _find(text)
    young = [
        one for one in seen.values() if now_s - one.last_s <= context.policy.kernel_log.max_age_s
    ]
    problems = [problem for one in young for problem in _judge(one, context)]
    return problems, sum(one.count for one in seen.values())


def _is_judged(signature: Signature) -> bool:
    return signature.kind not in _OF_PROGRAMS and signature.severity in _GRAVE


def _find(text: bytes) -> Mapping[str, _Seen]:
    """Find lines about hardware and storage, by the signature that names them."""
    # All of the kernel's: a line about a program must not be named by a broader one.
    by_id = {one.id: one for one in load_signatures() if one.log_source == "kernel"}
    seen: dict[str, _Seen] = {}
    named = -1
    for hit in LogPatterns(by_id.values(), "numpy").scan(text):
        if hit.offset == named:
            continue  # the first signature that matches a line names it
        named = hit.offset
        if not _is_judged(by_id[hit.signature]):
            continue
        line = hit.line.decode(errors="replace").strip()
        one = seen.setdefault(hit.signature, _Seen(by_id[hit.signature]))
        one.count += 1
        one.last, one.last_s = line, _read_time(line)
        one.lines.append(line)
    return seen


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()
    except ValueError:
        return 0.0


def _judge(seen: _Seen, context: Context) -> Iterator[CheckProblem]:
    signature = seen.signature
    is_common = signature.id in _COMMON
    is_fatal = signature.severity == "fatal" and signature.is_hardware == "yes"
    shown = seen.lines[-min(3, context.policy.kernel_log.max_lines) :]
    times = "once" if seen.count == 1 else f"{seen.count} times"
    yield CheckProblem(
        code=_CODE,
        severity="error" if is_fatal else "note" if is_common else "warning",
        confidence="certain" if is_fatal else "likely",
        text=f"the kernel logged {times}: {signature.meaning.rstrip('.') or signature.id}",
        subject=signature.id,
        because=tuple(line[:_MOST_CHARS] for line in shown),
        remedies=(signature.action,) if signature.action else (),
        measures={"lines": seen.count},
        details={"signature": signature.id},
    )
