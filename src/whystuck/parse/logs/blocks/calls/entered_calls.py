"""Calls that ranks print when they enter them, with their groups: `[r0] -> all_reduce on A`.

What somebody says of the order of all calls is found as well: `the order comes from a set()`. Only
texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_CALLS = 256
_MAX_WIDTH = 400
_OP = r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier)(?:_\w{1,24})?"
_ENTERED = re.compile(
    r"^[\W_]{0,6}(?:rank[ _=:]{0,2}|r)(?P<own>\d{1,7})\b[^\n]{0,80}?"
    r"(?:->|=>|>>|\u2192|\b(?:enter(?:s|ing)?|before|calling|calls|starts?|starting|issu(?:es|ing)"
    r"|going into|about to(?: call)?))[ :]{1,3}(?:torch\.)?(?:dist\.|distributed\.|c10d\.)?"
    rf"(?P<op>{_OP})(?:\(\))?"
    r"(?: (?:on|in|of|over|for|with)(?: the)? (?:(?:group|pg)[ =:]{1,2})?"
    r"|[ ,]{1,2}(?:group|pg)[ =:]{1,2}|\((?:group|pg)[ =:]{1,2})"
    r"['\"]?(?P<name>[A-Za-z][\w-]{0,40})\b",
    re.IGNORECASE,
)
_UNORDERED = re.compile(
    r"\border(?:ing)?\b[^.;\n]{0,60}?\b(?:depends? on|comes? from|follows|is (?:that|the one) of"
    r"|given by|decided by|out of)\b[^.;\n]{0,40}?"
    r"(?:\ba (?:python )?(?:frozen)?set\b|\b(?:frozen)?set\(|\b(?:listdir|i?glob|hash(?:es)?)\b)"
    r"|\b(?:iterat\w{1,4}|loops?|goes|walks?) (?:over|through) a (?:python )?(?:frozen)?set\b",
    re.IGNORECASE,
)
_DENIED = re.compile(r"n't\b|\b(?:not|never|no longer|sorted)\b", re.IGNORECASE)
_HINT = re.compile(
    rb"(?:->|=>|>>|\xe2\x86\x92|[nN]ter|efore|all(?:ing|s)|tart|ssu|nto|bout)[^\n]{0,30}"
    rb"(?:educe|ather|catter|_?all|cast|arrier)"
)


def find_entered_calls(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the calls that ranks say they enter, and whether the order of calls has no rule.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found: list[TabledSeen] = []
    said: list[TabledSeen] = []
    for at, text in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        line = text[:_MAX_WIDTH]
        if (match := _ENTERED.match(line)) and int(match["own"]) <= MAX_RANK:
            groups = {key: match[key] for key in ("own", "op", "name")}
            found.append(TabledSeen("table.entered", row + at, LogLine(line.strip()), groups))
        elif _UNORDERED.search(line) and not _DENIED.search(line):
            said.append(TabledSeen("table.unordered", row + at, LogLine(line.strip()), {}))
    if found:
        yield from (*found[-_MAX_CALLS:], *said[:1])
