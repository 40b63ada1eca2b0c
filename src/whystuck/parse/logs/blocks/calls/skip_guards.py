"""Source that leaves a collective out on a condition: `if not batch: continue` above the call.

Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_GUARDS = 16
_MAX_WIDTH = 300
# So far below the condition its call stands.
_NEAR_LINES = 12
_JUMPS = re.compile(rb"(?<!\w)(?:continue|return)(?!\w)")
_CALLS = re.compile(rb"(?<!\w)(?:torch\.distributed|dist|c10d)\.[a-z]\w{3,40}\(")
# Quotes, and the numbers of a listing.
_BEFORE = re.compile(r"^(?:> ?)?(?:\s{0,8}\d{1,6}[:|]?(?=\s))?")
_IF = re.compile(r"^(?P<indent>\s{0,60})if (?P<test>.{1,200}?):\s{0,4}(?P<body>[a-z].{0,80})?$")
_JUMP = re.compile(r"^(?P<indent>\s{0,80})(?P<jump>continue|return)\b(?!\s*\w{0,40}\()")
_CALL = re.compile(
    r"^(?P<indent>\s{0,60})(?:[\w.\[\], ]{1,80} ?= ?)?(?:torch\.distributed|dist|c10d)\."
    r"(?P<op>[a-z]\w{3,40})\("
)
# What lets ranks apart by their number is no condition on what they have.
_RANK = re.compile(r"rank|is_main|main_process|is_master|is_global_zero", re.IGNORECASE)


def find_skip_guards(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find conditions on which a rank jumps over a collective.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _CALLS.search(data) is None or _JUMPS.search(data) is None:
        return
    text = data.decode("utf-8", errors="replace")
    lines = [_cut(one[:_MAX_WIDTH]) for one in text.split("\n")]
    found = 0
    for at, line in enumerate(lines):
        guard = _IF.match(line) if "if " in line else None
        if guard is None or _RANK.search(guard["test"]) or found >= _MAX_GUARDS:
            continue
        jump, begin = _find_jump(lines, at, guard)
        call = _find_call(lines, begin, guard["indent"]) if jump else None
        if call is not None:
            found += 1
            groups = {"op": call["op"], "jump": jump, "test": guard["test"]}
            yield TabledSeen("source.skipped", row + at, LogLine(line.strip()), groups)


def _cut(line: str) -> str:
    """Return a line of source without what stands before it, and without its comment."""
    code, _, _ = _BEFORE.sub("", line, count=1).partition("  #")
    return code.rstrip().expandtabs()


def _find_jump(lines: Sequence[str], at: int, guard: re.Match[str]) -> tuple[str, int]:
    """Return the jump that a condition leads to alone, and the line behind it."""
    if guard["body"]:
        jump = _JUMP.match(guard["body"])
        return (jump["jump"], at + 1) if jump else ("", at)
    jump = _JUMP.match(lines[at + 1]) if at + 1 < len(lines) else None
    is_inside = jump is not None and len(jump["indent"]) > len(guard["indent"])
    return (jump["jump"], at + 2) if jump and is_inside else ("", at)


def _find_call(lines: Sequence[str], begin: int, indent: str) -> re.Match[str] | None:
    """Find the collective in the block of the condition, below it."""
    for line in lines[begin : begin + _NEAR_LINES]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth < len(indent) or line.lstrip().startswith(("else:", "elif ")):
            return None
        call = _CALL.match(line)
        if call is not None:
            return call if len(call["indent"]) == len(indent) else None
    return None
