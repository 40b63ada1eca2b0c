"""Boot checks of platforms as plain text: a local time and a sentence a line, in any order.

``2024-05-01 10:00:00 DiskTest /data/.gpfs_test: Succeed``. A line counts by itself; of several
about one thing the newest does. Figures whose definition is not told are kept, and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.lines.lines import parse_line

MAX_BYTES = 16 << 20
MAX_SEEN = 2000
_MAX_LINE = 4096
_MAX_CLEAN = 300
_LEAST_SHARE = 0.8
_GOOD = frozenset({"succeed", "succeeded", "success", "pass", "passed", "ok"})
_BAD = frozenset({"failed", "fail", "failure", "error", "timeout", "timed out", "abnormal"})
_ABSENT = frozenset({"unavailable", "not available", "none", "false", "no"})
_MB_PER_S = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3, "TB": 1e6}
_RATE = r"(\d{1,9}(?:\.\d{1,9})?) ([KMGT]?B)/s"
_WORD = r"([A-Za-z]{1,20}(?: [A-Za-z]{1,20})?)(?:[:,.] ?(.{0,300}))?"
_DISK = re.compile(rf"DiskTest (/\S{{0,1000}}): {_WORD}")
_SPEED = re.compile(rf"(/\S{{0,1000}}) RW TEST: {_RATE} {_RATE}")
_SUMS = re.compile(rf"AllReduce Check: {_WORD}")
_BUS = re.compile(rf"NCCL Performance Check: Bus Bandwidth Average: {_RATE}")
_FACT = re.compile(
    r"(GPU Number|GPU Type|CUDA Version|CUDA|PyTorch Version|NCCL Version): ?(\S.{0,200})"
)
# Lines that say what this is, and nothing else.
_FRAME = re.compile(
    r"Start to run (?:Bootchecking|Troubleshooting)\.{0,3}|Check Finished[.,].{0,100}"
)
_INNER = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\S.*)")
_VERSION = re.compile(r"\((\d{1,4}), (\d{1,4}), (\d{1,4})\)")
# As the checks of whystuck call them.
_TITLES = {
    "GPU Type": "devices",
    "CUDA Version": "CUDA",
    "PyTorch Version": "torch",
    "NCCL Version": "NCCL",
}


@dataclass(frozen=True, slots=True)
class BootSeen:
    """A line of a boot check: where and when it was written, and by whom."""

    row: int
    text: str
    time_ns: int = 0
    node: str = ""

    @property
    def is_frame(self) -> bool:
        """Whether it tells for sure that this is a boot check."""
        return bool(_FRAME.fullmatch(self.text) or _DISK.fullmatch(self.text))


def find_boot_text(text: str) -> str:
    """Return the sentence of a line of a boot check, without what stands before it; else nothing.

    Args:
        text: The line, without the prefixes that are known.
    """
    text = text.strip()[:_MAX_LINE]
    if _is_sentence(text):
        return text
    inner = _INNER.search(text)
    return inner[1] if inner and _is_sentence(inner[1]) else ""


def _is_sentence(text: str) -> bool:
    return any(form.fullmatch(text) for form in (_FRAME, _DISK, _SPEED, _SUMS, _BUS, _FACT))


def is_boot_check(data: bytes) -> bool:
    """Return whether a file is a boot check and, nearly, nothing else."""
    lines = [line for line in data[:MAX_BYTES].split(b"\n") if line.strip()]
    seen = list(_find_seen(data))
    return any(one.is_frame for one in seen) and len(seen) >= _LEAST_SHARE * len(lines)


def parse_boot_check(data: bytes, *, artifact: str) -> tuple[CheckResult, ...]:
    """Read a boot check.

    Raises:
        ParseError: It is none, or has more lines than any.
    """
    if len(data) > MAX_BYTES:
        raise ParseError(f"a boot check of more than {MAX_BYTES >> 20} MiB")
    results = make_boot_results(list(_find_seen(data)), artifact=artifact)
    if not results:
        raise ParseError("it has no result of a boot check")
    return results


def _find_seen(data: bytes) -> Iterator[BootSeen]:
    count = 0
    for row, raw in enumerate(data[:MAX_BYTES].split(b"\n"), 1):
        if not raw.strip() or len(raw) > _MAX_LINE:
            continue
        line = parse_line(raw)
        if text := find_boot_text(line.text):
            yield BootSeen(row, text, line.stamp.ns if line.stamp else 0, line.node)
            count += 1
            if count >= MAX_SEEN:
                return


def make_boot_results(seen: Sequence[BootSeen], *, artifact: str) -> tuple[CheckResult, ...]:
    """Return what lines of a boot check tell; nothing where none of them is one for sure."""
    if not any(one.is_frame for one in seen):
        return ()
    results = []
    for node in sorted({one.node for one in seen}):
        # The newest counts; of two at once, the worse one, whichever stands first.
        lines = sorted(
            (one for one in seen if one.node == node),
            key=lambda one: (one.time_ns, _is_bad(one.text), one.text),
        )
        results += _join_node(lines, node, artifact)
    return tuple(results)


def _is_bad(text: str) -> bool:
    if match := _DISK.fullmatch(text):
        return _read_word(match[2])[0] is not Outcome.OK
    match = _SUMS.fullmatch(text)
    return match is not None and _read_word(match[1])[0] is not Outcome.OK


def _join_node(lines: Iterable[BootSeen], node: str, artifact: str) -> list[CheckResult]:
    """Join what the lines of one node tell of each thing, the older ones first."""
    disks: dict[str, dict[str, Any]] = {}
    facts: dict[str, str] = {}
    figures: dict[str, float] = {}
    sums: dict[str, Any] = {}
    problems: list[CheckProblem] = []
    for line in lines:
        text = line.text
        if match := _DISK.fullmatch(text):
            disks.setdefault(_find_mount(match[1]), {}).update(_read_disk(match, text))
        elif match := _SPEED.fullmatch(text):
            disks.setdefault(_find_mount(match[1]), {})["figures"] = _read_speed(match)
        elif match := _SUMS.fullmatch(text):
            sums.update(_read_sums(match, text))
        elif match := _BUS.fullmatch(text):
            rate = float(match[1]) * _MB_PER_S[match[2]] / 1e3
            told = f"{rate:.4g} GB/s, an average: n, size and op are not told"
            sums["facts"] = {"bus bandwidth": told}
            sums["figures"] = {"told_busbw_gbps": rate}
        elif match := _FACT.fullmatch(text):
            _read_fact(match, text, facts, figures, problems)
    found = [_make("disk", node, artifact, one, place) for place, one in sorted(disks.items())]
    if facts or figures:
        last = {problem.code: problem for problem in problems}
        seen = {"facts": facts, "figures": figures, "problems": tuple(last.values())}
        found.append(_make("versions", node, artifact, seen))
    if sums:
        found.append(_make("allreduce", node, artifact, sums))
    return found


def _make(
    name: str, node: str, artifact: str, told: dict[str, Any], subject: str = ""
) -> CheckResult:
    problems = told.get("problems", ())
    outcome = Outcome.FAILED if problems else told.get("outcome", Outcome.OK)
    return CheckResult(
        name=name,
        node=node[:_MAX_CLEAN],
        subject=subject,
        outcome=outcome,
        reason=told.get("reason", ""),
        facts=dict(told.get("facts", {})),
        figures=dict(told.get("figures", {})),
        problems=problems,
        artifact=artifact,
    )


def _find_mount(path: str) -> str:
    """Return the mount: the test writes a hidden file on it."""
    place = PurePosixPath(path)
    return str(place.parent if place.name.startswith(".") else place)[:_MAX_CLEAN]


def _read_word(word: str) -> tuple[Outcome, str]:
    """Return what a word says of a check, and the word where it is not known."""
    known = word.strip().lower()
    if known in _GOOD:
        return Outcome.OK, ""
    if known in _BAD:
        return Outcome.FAILED, ""
    return Outcome.INCOMPLETE, f"it says `{word}`"


def _read_disk(match: re.Match[str], text: str) -> dict[str, Any]:
    outcome, reason = _read_word(match[2])
    if outcome is not Outcome.FAILED:
        return {"outcome": outcome, "reason": reason, "problems": ()}
    mount = _find_mount(match[1])
    why = f": {match[3]}" if match[3] else ""
    problem = CheckProblem(
        code="N401",
        severity="error",
        text=f"the boot check could not write and read {mount}{why}",
        subject=mount,
        because=(text[:_MAX_CLEAN],),
        details={"path": mount, "reason": match[3] or match[2]},
    )
    return {"problems": (problem,), "reason": ""}


def _read_speed(match: re.Match[str]) -> dict[str, float]:
    read, write = (float(match[at]) * _MB_PER_S[match[at + 1]] for at in (2, 4))
    return {"read_mb_per_s": read, "write_mb_per_s": write}


def _read_sums(match: re.Match[str], text: str) -> dict[str, Any]:
    outcome, reason = _read_word(match[1])
    if outcome is not Outcome.FAILED:
        return {"outcome": outcome, "reason": reason, "problems": ()}
    problem = CheckProblem(
        code="N419",
        severity="error",
        # It may have failed to run at all.
        confidence="likely",
        text="the boot check of all_reduce failed" + (f": {match[2]}" if match[2] else ""),
        subject="allreduce",
        because=(text[:_MAX_CLEAN],),
    )
    return {"problems": (problem,), "reason": ""}


def _read_fact(
    match: re.Match[str],
    text: str,
    facts: dict[str, str],
    figures: dict[str, float],
    problems: list[CheckProblem],
) -> None:
    name, value = match[1], match[2].strip()
    is_missing = False
    if name == "GPU Number":
        if value.isascii() and value.isdecimal():
            figures["devices"] = float(value[:9])
            is_missing = int(value[:9]) == 0
    elif name == "CUDA":
        facts["CUDA is"] = value
        is_missing = value.lower() in _ABSENT
    elif version := _VERSION.fullmatch(value):
        facts[_TITLES[name]] = ".".join(version.groups())
    else:
        facts[_TITLES[name]] = value
    if name in {"GPU Number", "CUDA"}:
        problems[:] = [one for one in problems if one.subject != name]
        if is_missing:
            problems.append(
                CheckProblem(
                    code="N411",
                    severity="error",
                    text=f"the boot check found no device that can be used: {text}",
                    subject=name,
                    because=(text[:_MAX_CLEAN],),
                )
            )
