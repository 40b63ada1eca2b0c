"""Lines in which a rank says that it has nothing of what a step counts: `labels kept: 0`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_NOUNS = (
    "labels", "tokens", "samples", "boxes", "targets", "images", "imgs", "utterances", "utts",
    "pairs", "examples", "masks", "positives",
)  # fmt: skip
_STATES = ("kept", "left", "valid", "remaining", "usable")
_IS = (": ", "=", ":", " = ")
NONE_MARKS = (
    *(f"{word}{mark}0".encode() for word in (*_NOUNS, *_STATES) for mark in _IS),
    *(f" {none} {word}".encode() for none in ("0", "no", "zero") for word in (*_NOUNS, *_STATES)),
    b" 0 of ", b" 0 out of ",
    *(f"{word} {state}".encode() for word in _NOUNS for state in ("kept", "left", "remain")),
)  # fmt: skip
_WORDS = rf"(?:{'|'.join(_NOUNS)})"
_NONE = re.compile(
    rf"\b{_WORDS}(?: (?:{'|'.join(_STATES)}))?\s?[=:]\s?0(?:/\d{{1,9}})?(?![\w.]|,\d)"
    rf"|\b(?:{'|'.join(_STATES)})(?: {_WORDS})?\s?[=:]\s?0(?:/\d{{1,9}})?(?![\w.]|,\d)"
    r"|(?<![\w./])(?:0(?:/\d{1,9})?|no|zero) (?:(?:of|out of) \d{1,9} )?"
    rf"(?:(?:{'|'.join(_STATES)}) )?{_WORDS}"
    r" (?:left|kept|remain|survive|after|in (?:this|the|its) )"
)
_RANK = re.compile(r"(?<![a-z_])rank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


class NoneReader:
    """Reads single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield it where it says so."""
        if is_mark and _NONE.search(line.text):
            named = _RANK.findall(line.text)
            own = named[0] if len(named) == 1 and int(named[0]) <= MAX_RANK else ""
            yield TabledSeen("table.none_left", row, line, {"own": own})
