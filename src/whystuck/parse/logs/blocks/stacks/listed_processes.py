"""Lists of processes and of their ranks, in the same order: `101 102 103 = rank 0 1 2`.

Or the loop of a shell that shows the stacks of one rank after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.headings import read_ranks_in_order
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.owners.known_logs import KnownLog

_NAME = "table.rank_pids"
_MAX_WIDTH, _MOST_FOUND = 400, 16
_HINT = re.compile(rb"\brank|\bfor rk? in ", re.IGNORECASE)
_TOOL = re.compile(rb"Thread |py-?spy|pystack|gdb", re.IGNORECASE)
_NEXT = r"[ ,/&]{1,3}(?:and )?"
_PIDS = rf"[(\[]?(?P<pids>\d{{2,7}}(?:{_NEXT}\d{{2,7}}){{1,127}})(?![\w.])[)\]]?"
_RANKS = (
    r"(?<![a-z_])(?<!local )(?<!local_)(?:global )?ranks?[ =:#(\[]{0,3}"
    rf"(?P<ranks>\d{{1,7}}(?:(?:{_NEXT}\d{{1,7}}){{1,127}}| ?(?:-|\.{{2,3}}|\u2013) ?\d{{1,7}}))"
    r"(?![\w.])[)\]]?"
)
_IS = r" ?(?:=+|->|=>|:|are|is|\u2192|belong to|stand for)? ?(?:the )?"
_LISTED = (
    re.compile(rf"(?<![\w.:/-]){_PIDS}{_IS}{_RANKS}", re.IGNORECASE),
    re.compile(
        rf"{_RANKS} ?(?:=+|->|=>|:|are|is|have|\u2192) ?(?:the )?"
        rf"(?:pids? |process(?:es)? )?{_PIDS}",
        re.IGNORECASE,
    ),
)
_DENIED = re.compile(r"\b(?:not|except|maybe|n't|reverse\w*|some)\b", re.IGNORECASE)
# `for r in 0 1 2; do py-spy dump -p $(cat out/$r.pid); done`
_LOOP = re.compile(
    r"\bfor (?P<name>r|rank|rk) in (?:\{(?P<range>\d{1,6}\.\.\d{1,6})\}"
    r"|\$\(seq (?P<seq>\d{1,6} \d{1,6})\)"
    r"|(?P<list>\d{1,6}(?: \d{1,6}){1,127})) ?; ?do .{0,120}?\b(?:py-spy dump|pystack|gdb)\b"
    r".{0,120}?\$\{?(?P=name)\b",
    re.IGNORECASE,
)


def find_listed_processes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the lines that list ranks and their processes, in texts that show stacks.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None or _TOOL.search(data) is None:
        return
    found = 0
    for at, line in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = line[:_MAX_WIDTH]
        if groups := _read(text):
            found += 1
            if found > _MOST_FOUND:
                return
            yield TabledSeen(_NAME, row + at, LogLine(text.strip()), groups)


def _read(text: str) -> dict[str, str]:
    """Return the ranks that a line lists, and their processes, which a loop does not tell."""
    if loop := _LOOP.search(text):
        told = loop["range"] or (loop["seq"] or "").replace(" ", "-") or loop["list"]
        ranks = read_ranks_in_order(told)
        return {"ranks": " ".join(map(str, ranks)), "pids": ""} if len(ranks) > 1 else {}
    for pattern in _LISTED:
        if match := pattern.search(text):
            ranks = read_ranks_in_order(match["ranks"])
            pids = re.findall(r"\d+", match["pids"])
            is_sound = len(ranks) == len(pids) == len({*pids}) and max(ranks) <= MAX_RANK
            if is_sound and not _DENIED.search(text):
                return {"ranks": " ".join(map(str, ranks)), "pids": " ".join(pids)}
    return {}


def list_listed(log: KnownLog, events: Iterable[LogEvent]) -> dict[int, int]:
    """Return the rank of each process whose stacks a log shows, where a line lists all of them."""
    stacks = [seen for seen in log.source.part.stacks if not seen.is_worker]
    if not stacks:
        return {}
    found: dict[int, int] = {}
    for event in events:
        if event.signature != _NAME or event.artifact != log.source.artifact:
            continue
        pairs = _pair(log, event, stacks)
        if not pairs or any(found.get(pid, rank) != rank for pid, rank in pairs.items()):
            return {}
        found |= pairs
    return found


def _pair(log: KnownLog, event: LogEvent, stacks: Sequence[StackSeen]) -> dict[int, int]:
    """Pair processes with the ranks of a line, where these are all that are shown."""
    ranks = [int(one) for one in event.groups["ranks"].split()]
    pids = [int(one) for one in event.groups["pids"].split()]
    if not pids:
        # A loop shows processes below it, in the order of its ranks, which may be those of one host
        # where others are told of.
        pids = [*dict.fromkeys(seen.pid for seen in stacks if seen.row > event.row)]
        pids = pids if {*log.source.part.facts.ranks} <= {UNKNOWN_RANK, *ranks} else []
    is_whole = len(ranks) == len(pids) and 0 not in pids
    return dict(zip(pids, ranks, strict=True)) if is_whole and _shows(stacks, pids) else {}


def _shows(stacks: Sequence[StackSeen], pids: Sequence[int]) -> bool:
    return {seen.pid for seen in stacks} <= {*pids}
