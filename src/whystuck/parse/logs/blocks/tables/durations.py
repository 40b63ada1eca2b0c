"""How long one operation takes each time, as a program prints it, and whether it began once more.

`push shards 18.2 GB: 46.9 s`. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_LEAST_WIDTH, _MAX_WIDTH = 6, 300
_MOST_KINDS, _MOST_TIMES = 64, 256
_LEAST_TIMES = 3
_HINT = re.compile(
    rb"\d ?(?:ms|s|secs?|seconds|min|minutes)(?:\.|,? \([^()\n]{1,60}\))?\s{0,4}(?:\n|$)"
)
_TOOK = re.compile(
    r"^(?P<what>.{6,200}?)(?:[:=]|\b(?:in|took|after|for))\s{0,4}(?P<value>\d{1,7}(?:\.\d{1,6})?)"
    # `took 28.1s (2000 docs)`
    r"\s?(?P<unit>ms|s|secs?|seconds|min|minutes)(?:\.|,? \([^()]{1,60}\))?\s{0,4}$"
)
_RANK = re.compile(r"(?<![a-z_])rank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# The first word that says what it is; times, levels and ranks stand before it.
_WORD = re.compile(
    r"\b(?!(?:rank|info|warning|debug|root|main|step|iter|iteration|epoch|time|node|host|worker)\b)"
    r"[A-Za-z][A-Za-z_-]{3,60}",
    re.IGNORECASE,
)
# `ckpt] step # ` before what it is
_LEAD = re.compile(r"^[\w-]{1,24}\] ?(?:(?:step|iter|iteration|epoch|round) ?#[:,]? ?)?")
# What somebody says that it takes where the limit is longer.
_LONGER = re.compile(
    r"\b(?:with|under|without)\b[^.;\n]{0,30}?\b(?:default|longer|larger|higher|bigger|raised|no|any"
    r"|\d{1,4} ?(?:min|minutes|h|hours))\b[^.;\n]{0,20}?\b(?:time-?outs?|(?:time )?limits?)\b"
    r"[^\n]{0,120}?\b(?:took|takes|needs|needed|done in|done after|over after)\s"
    r"(?P<value>\d{1,7}(?:\.\d{1,6})?) ?(?P<unit>ms|s|secs?|seconds|min|minutes)\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"n't\b|\b(?:not|never|hangs?|hung|stuck|timed out|times out)\b", re.IGNORECASE)
_SCALE = {"ms": 0.001, "min": 60.0, "minutes": 60.0}


@dataclass
class _Kind:
    """What an operation took each time."""

    what: str
    begin: str
    row: int
    text: str
    times: list[float] = field(default_factory=list)
    begun: str = ""


def find_durations(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find operations of which a text tells several times how long they took.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    kinds: dict[str, _Kind] = {}
    longer = ""
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        line = whole[:_MAX_WIDTH].strip()
        if len(line) >= _LEAST_WIDTH:
            _take_line(kinds, line, row + at)
            longer = longer or _find_longer(line)
    for kind in kinds.values():
        if len(kind.times) >= _LEAST_TIMES:
            said = _RANK.search(kind.text)
            groups = {"what": kind.what, "begun": kind.begun, "own": said[1] if said else ""}
            groups["longer"] = longer
            groups["times"] = " ".join(f"{one:g}" for one in kind.times)
            yield TabledSeen("table.durations", kind.row, LogLine(kind.text), groups)


def _find_longer(line: str) -> str:
    """Return how long somebody says that it takes with a longer limit, empty where nobody does."""
    match = _LONGER.search(line) if "limit" in line or "time" in line else None
    if match is None or _NOT.search(line):
        return ""
    return f"{float(match['value']) * _SCALE.get(match['unit'].lower(), 1.0):g}"


def _take_line(kinds: dict[str, _Kind], line: str, row: int) -> None:
    """Note how long an operation took by a line, or that one began again."""
    match = _TOOK.match(line)
    if match is None:
        plain = _NUMBER.sub("#", line)
        for kind in kinds.values():
            if plain.startswith(kind.begin):
                kind.begun = str(row)
        return
    what = _NUMBER.sub("#", match["what"])
    name = _WORD.search(what)
    if name is None or (what not in kinds and len(kinds) >= _MOST_KINDS):
        return
    shown = _LEAD.sub("", what[name.start() :]).strip(" :=#")
    known = _Kind(shown, what[: name.end()], row, line)
    kind = kinds.setdefault(what, known)
    kind.row, kind.text, kind.begun = row, line, ""
    if len(kind.times) < _MOST_TIMES:
        kind.times.append(float(match["value"]) * _SCALE.get(match["unit"], 1.0))
