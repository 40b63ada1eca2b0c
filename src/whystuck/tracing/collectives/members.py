"""Members of groups as short texts, and texts of traces as members."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from whystuck.evidence.ranks import MAX_RANK

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")
# From here on numbers are digests; nothing is counted as far as that.
IS_DIGEST = 1 << 61
_LIST = re.compile(r"\[?[\d,\s]*\]?")


@lru_cache(maxsize=65_536)
def read_member_list(text: str) -> tuple[int, ...]:
    """Read the ranks of a group as a trace lists them.

    Args:
        text: Such as ``[0, 1, 2]``.

    Returns:
        The ranks in order; none when the list is cut off (torch lists 30) or is none.
    """
    if not _LIST.fullmatch(text):
        return ()
    ranks = {int(part) for part in text.strip("[] ").split(",") if part.strip()}
    return tuple(sorted(ranks)) if all(rank <= MAX_RANK for rank in ranks) else ()


@lru_cache(maxsize=65_536)
def write_members(ranks: tuple[int, ...]) -> str:
    """Write ranks short: ``0-7``, with a step ``1-61/4``, or one by one; see `read_members`."""
    parts: list[str] = []
    place = 0
    while place < len(ranks):
        end = place + 1
        step = ranks[end] - ranks[place] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - place < 3:  # noqa: PLR2004 - two ranks are shorter one by one
            end = place + 1
            parts.append(str(ranks[place]))
        else:
            tail = "" if step == 1 else f"/{step}"
            parts.append(f"{ranks[place]}-{ranks[end - 1]}{tail}")
        place = end
    return ",".join(parts)


@lru_cache(maxsize=65_536)
def read_members(text: str) -> tuple[int, ...]:
    """Read what `write_members` wrote.

    Args:
        text: The text; it may come from a file that anyone wrote.

    Returns:
        The ranks in order; none when it is no such text.
    """
    ranks: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not step or last > MAX_RANK:
            return ()
        ranks.update(range(first, last + 1, step))
    return tuple(sorted(ranks))


@lru_cache(maxsize=65_536)
def number_text(*parts: str | int) -> int:
    """Return a number for some texts that is the same in every process, not below `IS_DIGEST`."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return IS_DIGEST + (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 3)
