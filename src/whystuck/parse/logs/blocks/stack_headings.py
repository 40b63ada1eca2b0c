"""Whose rank the stacks that come next are: a heading, or a sentence that people write above."""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK

# The name of a rank in a line of its own, or at the end of one, as a heading of what follows.
_RANK = r"[Rr](?:ANK|ank)[ _:=#]{0,2}(?P<rank>\d{1,7})"
_HEADING = re.compile(
    rf"^[\W_]{{0,12}}{_RANK}\b(?:[\W_]*$|:? ?https?://"
    r"|[\s,:]*\(?(?:pid|PID|host|node|on|at|py-spy)\b| ?\([\w.-]{1,64}\)[\W_]*$)"
    rf"|(?:^|[\s#*=(,-]){_RANK.replace('rank>', 'last>')}[\W_]{{0,12}}$"
)
# A sentence about one rank, above its stack.
_SAID = re.compile(
    rf"^(?P<before>[^\[\]]{{0,60}}?(?<![a-z_])){_RANK.replace('rank>', 'said>')}(?![\w-])"
    r"(?P<after>[^\[\]]{0,100}):[\W_]*$"
)
# What makes another one the one that the sentence is about.
_OTHERS = re.compile(
    r"\b(?:not|but|except|unlike|than|to|with|without|besides|local|talk\w*|wait\w*|that|which|what"
    r"|ranks?|(?:and|or|,|/|-) ?\d)\b",
    re.IGNORECASE,
)
_TALK = re.compile(r"\b(?:from|by|for|of)\b", re.IGNORECASE)


def find_heading(text: str, writer: int) -> re.Match[str] | None:
    """Find the one rank that a line says the next stack is of.

    Args:
        text: The line, or its beginning.
        writer: The rank that a prefix says wrote it: only people write sentences about stacks.

    Returns:
        A match with one of the groups ``rank``, ``last`` and ``said``; None where there is none.
    """
    if match := _HEADING.search(text):
        before = text[: match.start()] if match["last"] else ""
        # What ranks print of each other is no heading.
        is_talk = writer != UNKNOWN_RANK and _TALK.search(before)
        return None if is_talk or _OTHERS.search(before) else match
    match = _SAID.match(text) if writer == UNKNOWN_RANK and text.rstrip().endswith(":") else None
    is_about = match and not _OTHERS.search(match["before"]) and not _OTHERS.search(match["after"])
    return match if is_about else None
