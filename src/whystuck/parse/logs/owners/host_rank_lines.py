"""Lines that name a host or pod and the rank on it, side by side."""

from __future__ import annotations

import re

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.label_forms import NO_COUNT

# A name has a number or a dash; what is counted in jobs is none.
_NAME = rf"{NO_COUNT}(?=[\w.]*[\d-])[A-Za-z][\w.-]{{1,62}}"
_RANK = r"(?:global[ _]?)?rank(?: ?[=:#_] ?|-| )?(\d{1,7})(?![\w.-])"
_AFTER = re.compile(
    # `wds-train-3  rank=3  step=2200`, `train-3: rank 3`, `[n7] (rank 3)`, `train-3 is rank 3`
    rf"^[\s\[(|-]{{0,8}}(?:pod/|pod[ =:]{{1,2}}|host(?:name)?[ =:]{{1,2}})?({_NAME})[\])]?"
    rf"(?:[\s:|,=(\[>-]{{1,8}}|\s{{1,4}}(?:is|has|holds|runs)\s{{1,4}}){_RANK}",
    re.IGNORECASE,
)
_FIELD = re.compile(
    rf"\b(?:pod|pod_?name|host|hostname|node|node_?name)['\"]?\s?[=:]\s?['\"]?({_NAME})\b",
    re.IGNORECASE,
)
# `rank 3 -> train-3`, `rank 3 runs on pod train-3`
_BEFORE = re.compile(
    rf"^[\s\[(|*-]{{0,8}}{_RANK}[\])]?(?:\s?(?:->|=>|[:=(@])\s?"
    r"|\s{1,4}(?:(?:is|runs|lives|sits) )?(?:on|in|at)\s{1,4}){1,2}"
    r"(?:the )?(?:(?:pod[/ =:]|host(?:name)?[ =:]|node[ =:])[ =]?)?"
    rf"({_NAME})(?=[\s),;:.\]]|$)",
    re.IGNORECASE,
)
_ITS_RANK = re.compile(r"(?<![\w./-])rank['\"]?\s?[=:]\s?['\"]?(\d{1,7})(?![\w.-])", re.IGNORECASE)
_WHERE = ("pod", "host", "node")


def find_seat(text: str, small: str) -> tuple[str, int] | None:
    """Return a host or pod and the rank on it, where a line names both and no others.

    Args:
        text: The line.
        small: The same in small letters.
    """
    if small.count("rank") != 1:
        return None
    if match := _AFTER.match(text):
        name, rank = match[1], match[2]
    elif match := _BEFORE.match(text):
        rank, name = match[1], match[2]
    elif any(word in small for word in _WHERE) and (match := _FIELD.search(text)):
        own = _ITS_RANK.search(text)
        if own is None:
            return None
        name, rank = match[1], own[1]
    else:
        return None
    return (name, int(rank)) if int(rank) <= MAX_RANK else None
