"""Steps that a loop prints below what torch prints of functions that it compiles again.

`TORCH_LOGS=recompiles` tells when a compile begins, and never when it is done: the step that is
printed next is the one in which it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

RECOMPILE_MARKS = (b"Recompiling function ",)
# `[4/6] [__recompiles] Recompiling function forward in /work/net.py:12`, and as torch 2.1 prints it
_AGAIN = re.compile(
    r"\[\d{1,6}/(?P<count>\d{1,6})(?:_\d{1,4})?\] (?:\[__recompiles\]|\S{1,60}__recompiles: "
    r"\[DEBUG\]) Recompiling function (?P<func>\S{1,80}) in (?P<place>\S{1,200})"
)
_TIME = re.compile(
    r"(?<![\w.])(?P<value>\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>ms|s|sec)(?:/(?:it|iter|step))?(?![\w/])"
    r"|\b(?:(?:step|iter)_)?(?:time|dt)['\"]?[ =:]{1,3}(?P<bare>\d{1,9}\.\d{1,6})(?![\w.])"
)
# What it was compiled for: `- 4/5: self.rate == 0.31`, `size mismatch at index 1. expected 8, ...`
_GUARD = re.compile(
    r"\]\s{1,12}- (?:\d{1,6}/\d{1,6}: )?(?:(?P<guard>[^=#\n]{1,160}?) == (?P<value>[^\s#]{1,60})"
    r"|(?P<tensor>tensor .{1,80}? size mismatch at index \d{1,3})\. expected \d{1,12}, "
    r"actual (?P<actual>\d{1,12}))"
)
_PER_S = {"ms": 0.001}
_MAX_WIDTH = 400
# Below a compile, so many lines are looked at, in which its reasons stand as well.
_MOST_LINES = 64


class RecompiledStepReader:
    """Follows the steps below each compile."""

    def __init__(self) -> None:
        self._left = 0
        # What was compiled since the last step, and the number of the step that followed.
        self._told: dict[str, str] = {}
        self._step = ""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be steps."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield it where it tells how long a step took."""
        text = line.text
        self._left -= 1
        if is_mark and (match := _AGAIN.search(text)):
            self._told, self._step, self._left = match.groupdict(), "", _MOST_LINES
            self._told |= {"guard": "", "value": ""}
            return
        if self._told and not self._step and (why := _GUARD.search(text, 0, _MAX_WIDTH)):
            self._told["guard"] = why["guard"] or why["tensor"]
            self._told["value"] = why["value"] or why["actual"]
            return
        number = STEP.search(text, 0, _MAX_WIDTH)
        seconds = read_seconds(text) if number else 0.0
        if number is None or not seconds or not self._told:
            return
        step = number[1] or number[2] or number[3]
        self._step = self._step or step
        # Ranks that print the same step tell of the same compile.
        told = self._told if step == self._step else dict.fromkeys(self._told, "")
        yield TabledSeen("table.recompiled", row, line, {"step": step, "s": repr(seconds)} | told)


def read_seconds(text: str) -> float:
    """Return the longest time in a line: what a part of a step takes is shorter than the step."""
    found = 0.0
    for match in _TIME.finditer(text, 0, _MAX_WIDTH):
        value = float(match["value"] or match["bare"])
        found = max(found, value * _PER_S.get(match["unit"] or "", 1.0))
    return found
