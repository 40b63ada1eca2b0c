"""What the kernel has logged of broken hardware and storage since it was started (N425)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from whystuck.check.check import Check, Context
from whystuck.collect.node.kernel_log import KernelLog as Reader
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome
from whystuck.parse.logs.search.scan import LogPatterns
from whystuck.parse.logs.signatures import Signature, load_signatures

_CODE = "N425"
# What a program does to itself or what memory it takes says nothing of the node.
_OF_PROGRAMS = frozenset({"crash", "gpu_app_fault", "gpu_secondary", "host_oom", "boot", "env"})
# Said at every start of a node, for ports without a cable too; the check of interfaces judges.
_COMMON = frozenset({"link.down"})
_GRAVE = frozenset({"fatal", "error", "by-code", "by-severity-word"})
_MOST_CHARS = 200
# Lines also quote what programs call themselves, their files and their cgroups, and whoever starts
# one chooses that. The kernel's own words come first, or behind the name of a driver and a device.
_OWN_START = re.compile(r"(?:\[[ \d.]+\] )?(?:[\w.-]+(?: \(?[\w:.-]+\)?)?: ){0,2}")
# The name of a process, which may come first, has so many characters.
_MAX_NAME = 15
_OWN_REST = re.compile(r"[\w ,.#-]* on \S")


@dataclass
class _Seen:
    """Lines of one kind: how many, the last one, and when that was.

    ``is_own`` tells that what matched are words of the kernel, and no name that it quotes.
    """

    signature: Signature
    is_own: bool
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


def _find(text: bytes) -> Mapping[tuple[str, bool], _Seen]:
    """Find lines about hardware and storage, by the signature that names them."""
    # All of the kernel's: a line about a program must not be named by a broader one.
    by_id = {one.id: one for one in load_signatures() if one.log_source == "kernel"}
    seen: dict[tuple[str, bool], _Seen] = {}
    named = -1
    for hit in LogPatterns(by_id.values(), "numpy").scan(text):
        if hit.offset == named:
            continue  # the first signature that matches a line names it
        named = hit.offset
        signature = by_id[hit.signature]
        if not _is_judged(signature):
            continue
        line = hit.line.decode(errors="replace").strip()
        is_own = _is_own(line, signature)
        one = seen.setdefault((signature.id, is_own), _Seen(signature, is_own))
        one.count += 1
        one.last, one.last_s = line, _read_time(line)
        one.lines.append(line)
    return seen


def _is_fatal(signature: Signature) -> bool:
    return signature.severity == "fatal" and signature.is_hardware == "yes"


def _is_own(line: str, signature: Signature) -> bool:
    """Return whether what matched in a line are words of the kernel, and no name in it.

    Only a fatal error of hardware may keep a job from starting, so the others need no proof.
    """
    if not _is_fatal(signature):
        return True
    message = line.partition(" kernel: ")[2]
    found = re.search(signature.regex, message)
    if found is None or not _OWN_START.fullmatch(message, 0, found.start()):
        return False
    is_long = len(found[0]) > _MAX_NAME
    return is_long or _OWN_REST.match(message, found.end()) is not None


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()
    except ValueError:
        return 0.0


def _judge(seen: _Seen, context: Context) -> Iterator[CheckProblem]:
    signature = seen.signature
    is_common = signature.id in _COMMON
    is_grave = _is_fatal(signature)
    is_fatal = is_grave and seen.is_own
    shown = seen.lines[-min(3, context.policy.kernel_log.max_lines) :]
    times = "once" if seen.count == 1 else f"{seen.count} times"
    yield CheckProblem(
        code=_CODE,
        severity="error" if is_fatal else "note" if is_common else "warning",
        confidence="certain" if is_fatal else "possible" if is_grave else "likely",
        text=f"the kernel logged {times}: {signature.meaning.rstrip('.') or signature.id}",
        subject=signature.id,
        because=tuple(line[:_MOST_CHARS] for line in shown),
        remedies=(signature.action,) if signature.action else (),
        measures={"lines": seen.count},
        details={"signature": signature.id},
    )
