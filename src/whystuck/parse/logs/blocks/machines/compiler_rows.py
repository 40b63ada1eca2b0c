r"""Compilers among the processes that `ps` lists, and the rank below which each of them runs.

`73120  72815 R+ 13:11 00:13:08 \_ .../bin/ptxas -v ...`. Only texts of the size that people paste
are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.stacks.commands import find_rank
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST_ROWS, _MOST_STEPS = 800, 4096, 16
_HINT = re.compile(rb"[/ ](?:ptxas|cicc|nvcc|cudafe\+\+|cc1plus|hipcc|ld\.lld|bisheng|neuronx-cc) ")
_TOOL = re.compile(
    r"(?:^|[/ ])(?P<tool>ptxas|cicc|nvcc|cudafe\+\+|cc1plus|hipcc|ld\.lld|bisheng|neuronx-cc) "
)
# A process and its parent, behind the user where that is shown; then a state, times and so on.
_ROW = re.compile(
    r"^\s{0,12}(?:[a-z_][\w.+-]{0,31}\s{1,12})?(?P<pid>\d{2,8})\s{1,12}(?P<parent>\d{1,8})\s{1,12}"
    r"(?P<rest>\S.{0,700})$"
)
_CLOCK = re.compile(r"(?<!\S)(?:\d{1,3}-)?(?:(\d{1,3}):)?(\d{1,4}):(\d\d)(?:\.\d{1,3})?(?!\S)")
_STARTED = re.compile(r"\bpython[\d.]{0,5} |torchrun|deepspeed")
# One that has just begun says nothing.
_LEAST_S = 60
_LEAST_RANKS = 3


@dataclass(frozen=True)
class _Process:
    """A row of a list: the parent, what is behind the numbers, and its rank where that is told."""

    parent: int
    text: str
    row: int
    rank: int


def find_compiler_rows(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find compilers that run below one of several ranks, and how long they have.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    known: dict[int, _Process] = {}
    for at, text in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        match = _ROW.match(text[:_MAX_WIDTH]) if len(known) < _MOST_ROWS else None
        if match is not None:
            rank = _read_rank(match["rest"])
            known[int(match["pid"])] = _Process(int(match["parent"]), text, row + at, rank)
    ranks = {one.rank for one in known.values()} - {UNKNOWN_RANK}
    for one in known.values() if len(ranks) >= _LEAST_RANKS else ():
        tool = _TOOL.search(one.text)
        owner = _find_owner(known, one) if tool else UNKNOWN_RANK
        seconds = _read_seconds(one.text[: tool.start()]) if tool else 0
        if tool is None or owner == UNKNOWN_RANK or 0 <= seconds < _LEAST_S:
            continue
        groups = {"own": str(owner), "tool": tool["tool"], "s": str(max(0, seconds))}
        groups["ranks"] = ",".join(map(str, sorted(ranks)))
        yield TabledSeen("table.compiler", one.row, LogLine(one.text.strip()), groups)


def _read_rank(text: str) -> int:
    """Return the rank that a row of a rank is said to be; what it starts has none of its own."""
    return find_rank(f" {text}") if _STARTED.search(text) else UNKNOWN_RANK


def _find_owner(known: Mapping[int, _Process], process: _Process) -> int:
    """Return the rank that a process descends from."""
    for _ in range(_MOST_STEPS):
        above = known.get(process.parent)
        if above is None or above.rank != UNKNOWN_RANK:
            return above.rank if above is not None else UNKNOWN_RANK
        process = above
    return UNKNOWN_RANK


def _read_seconds(text: str) -> int:
    """Return the shortest time in the cells of a row, as `ps` shows how long it ran; -1 if none.

    The clock at which it began may stand there as well.
    """
    times = [
        int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
        for hours, minutes, seconds in _CLOCK.findall(text)
    ]
    return min(times, default=-1)
