"""The function that torch compiled as often as it may be, and how long the steps before took.

`torch._dynamo hit config.recompile_limit (8)`, with the function and the last reason below. Only
texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.parse.logs.blocks.calls.recompiled_steps import read_seconds
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

_HIT = "torch._dynamo hit config."
_LIMIT = re.compile(
    r"torch\._dynamo hit config\.(?:accumulated_)?(?:recompile_limit|cache_size_limit) "
    r"\((?P<limit>\d{1,6})\)"
)
_FUNC = re.compile(r"\bfunction: '(?P<func>[^']{1,80})' \((?P<place>[^()\s]{1,200})\)")
_WHY = re.compile(r"\b(?:last reason|reasons): {1,4}(?:\d{1,6}/\d{1,6}: )?(?P<why>\S.{0,160})")
_MAX_WIDTH = 400
# How far below the limit its function stands, and how many steps above it are read.
_BELOW, _MOST_STEPS = 8, 64
_MOST_LIMITS = 16


def find_compile_limits(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find functions that were compiled up to the limit, with the times of the steps above.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HIT.encode() not in data:
        return
    lines = [one[:_MAX_WIDTH] for one in data.decode("utf-8", errors="replace").split("\n")]
    steps: dict[str, float] = {}
    found = 0
    for at, line in enumerate(lines):
        if step := STEP.search(line):
            _note_step(steps, step[1] or step[2] or step[3], read_seconds(line))
        match = _LIMIT.search(line) if _HIT in line else None
        told = _read_function(lines[at + 1 : at + _BELOW]) if match else {}
        if match is None or not told or found >= _MOST_LIMITS:
            continue
        found += 1
        times = " ".join(f"{one:g}" for one in [*steps.values()][-_MOST_STEPS:])
        groups = told | {"limit": match["limit"], "times": times}
        yield TabledSeen("table.compile_limit", row + at, LogLine(line.strip()), groups)


def _note_step(steps: dict[str, float], step: str, seconds: float) -> None:
    """Note how long a step took; of ranks that print the same step, the longest counts."""
    if seconds:
        steps[step] = max(seconds, steps.get(step, 0.0))


def _read_function(lines: Sequence[str]) -> dict[str, str]:
    """Read which function it is and why it was compiled again; empty where one is not told."""
    found: dict[str, str] = {}
    for line in lines:
        if _HIT in line:
            break
        for pattern in (_FUNC, _WHY):
            if match := pattern.search(line):
                found = match.groupdict() | found
    return found if {"func", "why"} <= found.keys() else {}
