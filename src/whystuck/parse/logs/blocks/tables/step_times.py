"""How long each step takes, as loops print it, where a text tells what may make some of them slow.

`iter 2000: loss 2.88, time 231004.72ms`, `step 61 | 0.84s | step 62 | 37.20s`. Beside compiles up
to the limit of the compiler, and lines of saves. Only texts of the size that people paste are
looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.calls.recompiled_steps import read_seconds
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

_MOST_STEPS, _MAX_WIDTH = 1024, 1000
_LIMIT = rb"hit config\.(?:cache_size|recompile)_limit"
_SAVE = re.compile(rb"\b[Ss]av(?:ing|ed) |\b[Cc]heckpoint|\b[Cc]kpt")
_HINT = re.compile(_LIMIT)
# `function: 'forward' (/src/model/encoder.py:77)`, and why its guard failed last
_FUNCTION = re.compile(r"\bfunction: '(?P<func>[^']{1,80})' \((?P<place>[^()\s]{1,200}:\d{1,7})\)")
_REASON = re.compile(r"\blast reason: (?:\d{1,6}/\d{1,6}: )?(?P<reason>\S.{0,300})")
# A line that says that a checkpoint is saved now, and no step: `saving checkpoint to /mnt/out`
_SAVING = re.compile(
    r"^(?!.*\b(?:every|each|interval|will|disabled|async\w*|background)\b).{0,80}?"
    r"\b(?:[Ss]av(?:ing|ed) (?:[\w-]{1,20} ){0,3}(?:checkpoint|ckpt|model|state|weights|snapshot)"
    r"|(?:[Cc]heckpoint|[Cc]kpt)(?:ing| saved| written)?(?: to)? [/\w.-]{0,40}/)"
)
# `only master_process saves`, `rank 0 alone writes the checkpoint`
_ONE = (
    r"(?:(?:global )?rank[ _]?0|(?:the )?(?:master|main|first)(?:[_ ]process|[_ ]rank)?|one rank)"
)
_WRITES = r"(?:saves?|writes?|is saving|is writing|checkpoints)\b"
_SOLE = re.compile(
    rf"\bonly {_ONE} {_WRITES}|\b{_ONE} (?:alone {_WRITES}|{_WRITES} alone|is the only one)"
    rf"|\b{_WRITES} (?:only )?(?:on|from|by) {_ONE} (?:only|alone)\b",
    re.IGNORECASE,
)


def find_step_times(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find steps with their times, lines of saves, and functions that are compiled too often.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None and _SAVE.search(data) is None:
        return
    found = 0
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = whole.rstrip("\r").rpartition("\r")[2][:_MAX_WIDTH]
        for name, groups in _read_line(text):
            found += 1
            if found > _MOST_STEPS:
                return
            yield TabledSeen(name, row + at, LogLine(text.strip()), groups)


def _read_line(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    if match := _FUNCTION.search(text):
        yield "table.compile_limit", match.groupdict()
    elif match := _REASON.search(text):
        yield "table.compile_reason", match.groupdict()
    elif _SOLE.search(text):
        yield "table.sole_saver", {}
    elif _SAVING.search(text) and not STEP.search(text):
        yield "table.saving", {}
    else:
        yield from _list_steps(text)


def _list_steps(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the steps of a line, each with the longest time before the next one."""
    steps = list(STEP.finditer(text))
    ends = [step.start() for step in steps[1:]]
    for step, end in zip(steps, [*ends, len(text)], strict=False):
        number = step[1] or step[2]
        seconds = read_seconds(text[step.end() : end]) if number else 0.0
        if number and seconds:
            yield "table.step_time", {"step": number, "s": repr(seconds)}
