"""Stacks that one line tells: of many processes that are alike, or of ranks that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.blocks.stacks.headings import read_rank_list
from whystuck.parse.logs.blocks.stacks.seen import CUT, StackSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_ALIKE = 4096
_MAX_FRAMES = 200
_SUMMARY = re.compile(
    r"^\s*(\d{1,6}) ?x\s+Thread (?:\S{1,30} )?\((?:active|idle)[a-z+ ]{0,20}\)(.+)$"
)
# `py-spy r0,1,2: inner (a.py:1) < outer (b.py:2)`, and with arrows the other way round
_CHAIN = re.compile(
    r"^(?:[\w.:/$-]{1,20} {1,4}){0,3}(?:[Rr]anks?[ =:_]{0,2}|[Rr])(?P<ranks>\d[\d ,&-]{0,400}?)"
    r"(?: ?\([^()]{0,80}\)| ?[,|]?[ ]{1,4}(?:pid|PID)[ =:]{0,2}(?P<pid>\d{1,10}))?"
    r"(?:[ ]{0,4}[:=|\t][ ]{0,4}|[ ]{2,12}|(?= \"?MainThread))"
    r"(?: ?\(?\"?(?:MainThread|main thread|main)\"?(?: \((?:active|idle)\))?\)?"
    r"[ ]{0,4}[:=|\t]?[ ]{0,12})?"
    r"(?P<chain>[\w.<>]{1,120}(?: \(| ?<| ?-?>).+)$"
)
_ARROW = re.compile(r" (?P<inner><-{0,2}|<=|←)(?= )| (?P<outer>-{0,2}>|=>|→)(?= )")
_PART = re.compile(r"^\s*(\S.{0,500}?)(?: \((.{1,1000}?)(?::(\d{1,9}))?\))?\s*$")
_BARE = re.compile(r"^[\w.<>]{1,120} \([^()]{1,400}:\d{1,9}\) ?(?:<-|←)")
# A frame with no arrow behind it: the rest of the line is about something else, or other ranks.
_END = re.compile(r"(?<=\d)\) ?(?:\.{1,3}|…|[;,])? {0,4}(?=[A-Za-z])")
_REST = re.compile(
    r"^(?:and |while |but )?(?:all )?(?:of )?(?:the )?(?:others?|rest|everyone else)"
    r"(?: \w{1,12}){0,3} ?[:=] ?(?P<chain>[\w.<>]{1,120} \(.+)$",
    re.IGNORECASE,
)
_PLACE = re.compile(r"\b(?:pod|host|node|worker)[=:] ?([A-Za-z0-9][\w.-]{0,62})")
_NOTE_RANK = re.compile(r"\brank[ =:]{0,2}(\d{1,7})\b", re.IGNORECASE)
_ELIDED = {"...", "..", "…"}


def read_summary(text: str, line: LogLine, row: int) -> Iterator[StackSeen]:
    """Read a line that tells a whole stack."""
    if match := _SUMMARY.match(text):
        yield _read_many(match, line, row)
    elif " (" in text:
        if line.rank != UNKNOWN_RANK and _BARE.match(text):
            text = f"rank {line.rank}: {text}"  # the name of a rank before it looks like a prefix
        if match := _CHAIN.match(text[:4000]):
            yield from _read_chain(match, line, row)


def _read_many(match: re.Match[str], line: LogLine, row: int) -> StackSeen:
    """Read one line for many processes: ``29x  Thread (active) inner <- outer <- ...``."""
    text, place = match[2], _PLACE.search(match[2])
    if place is not None:
        text = text[: place.start()]
    thread = _make_thread(_read_parts(text.split("<-")))
    rank = _NOTE_RANK.search(match[2])
    alike = min(int(match[1]), _MAX_ALIKE)
    return StackSeen(
        row,
        line,
        rank=int(rank[1]) if rank and alike == 1 else UNKNOWN_RANK,
        node=place[1] if place else "",
        alike=alike,
        threads=[thread],
        source="summary",
    )


def _read_chain(match: re.Match[str], line: LogLine, row: int) -> Iterator[StackSeen]:
    """Read the calls of ranks that a line names; with one arrow, and a place in a file at least."""
    chain, behind = _cut_chain(match["chain"])
    frames = _read_calls(chain)
    ranks = read_rank_list(match["ranks"])
    if not ranks or not _ARROW.search(chain) or not any(frame.line for frame in frames):
        return
    yield StackSeen(
        row,
        line,
        pid=int(match["pid"] or 0) if len(ranks) == 1 else 0,
        rank=min(ranks),
        others=ranks - {min(ranks)},
        threads=[_make_thread(frames)],
        source="summary",
    )
    if other := _CHAIN.match(behind):
        yield from _read_chain(other, line, row)
    elif rest := _REST.match(behind):
        chain, _ = _cut_chain(rest["chain"])
        # One frame alone is mostly the line of a caller, which looks as if it were at work there.
        if _ARROW.search(chain) and (frames := _read_calls(chain)):
            threads = [_make_thread(frames)]
            yield StackSeen(row, line, is_rest=True, threads=threads, source="summary")


def _cut_chain(text: str) -> tuple[str, str]:
    """Return the calls that a text begins with, and what stands behind them."""
    end = _END.search(text)
    return (text[: end.start() + 1], text[end.end() :]) if end else (text.rstrip(" ."), "")


def _read_calls(chain: str) -> list[Frame]:
    """Read the frames of a chain, the innermost first; none where arrows point both ways."""
    arrows = list(_ARROW.finditer(chain))
    inner = [one for one in arrows if one["inner"]]
    if len(inner) not in (0, len(arrows)):
        return []
    ends = [0, *(one.end() for one in arrows)]
    starts = [*(one.start() for one in arrows), len(chain)]
    parts = [chain[begin:end] for begin, end in zip(ends, starts, strict=True)]
    return _read_parts(parts if inner else parts[::-1])


def _read_parts(parts: list[str]) -> list[Frame]:
    frames: list[Frame] = []
    for part in parts[:_MAX_FRAMES]:
        found = _PART.match(part)
        if found is None:
            continue
        file = found[2] or "native"
        if file in _ELIDED and frames:
            file = frames[-1].file
        frames.append(Frame(found[1], file, int(found[3] or 0)))
    return frames


def _make_thread(frames: list[Frame]) -> ThreadStack:
    return ThreadStack(0, "MainThread", (*frames, CUT), is_main=True)
