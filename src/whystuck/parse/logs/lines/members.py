"""The ranks that torch prints inside its lines, which count from the first of a process group."""

from __future__ import annotations

import re
from collections.abc import Iterable

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.parts import EventSeen

# `[PG 2 Rank 0]`, `[PG ID 2 PG GUID 7(tp) Rank 0]`
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d{1,9})(?: PG GUID (?P<guid>[^\s()\]]{1,80}))?"
    r"(?: ?\((?P<desc>[^)]{0,80})\))? Rank (?P<rank>\d{1,7})\]"
)
_FAR = 120
# A watchdog reports works that follow each other; numbers that are further apart are of two groups.
_NEAR = 16


class Members:
    """Tells whether such a number is a rank of the job: nothing shows a group but that of all."""

    def __init__(self, events: Iterable[EventSeen]) -> None:
        """Look at the known lines of all logs."""
        self._are_ranks = True
        works: dict[int, list[int]] = {}
        for seen in events:
            group = _find_group(seen.line.text)
            if group is not None and not _is_of_all(group):
                self._are_ranks = False
            number = seen.groups.get("seq") or ""
            if seen.line.member != UNKNOWN_RANK and number.isdecimal():
                works.setdefault(seen.line.member, []).append(int(number[:18]))
        if any(max(numbers) - min(numbers) >= _NEAR for numbers in works.values()):
            self._are_ranks = False

    def find_rank(self, line: LogLine) -> int:
        """Tell the rank that wrote a line which no prefix names; it is unknown in most groups."""
        group = _find_group(line.text)
        if group is not None and _is_of_all(group) and int(group["rank"]) <= MAX_RANK:
            return int(group["rank"])
        return line.member if self._are_ranks and group is None else UNKNOWN_RANK


def name_member(line: LogLine) -> dict[str, str]:
    """Return the number that the writer of a line has in its group, where the line tells it."""
    group = _find_group(line.text)
    member = group["rank"] if group is not None else str(line.member)
    return {"member": member} if member.isdecimal() else {}


def _find_group(text: str) -> re.Match[str] | None:
    """Find the group in which a line is written; what a tool put before it may be left."""
    place = text.find("[PG ", 0, _FAR)
    return _GROUP.match(text, place) if place >= 0 else None


def _is_of_all(group: re.Match[str]) -> bool:
    name = group["desc"] or ("" if group["guid"] is None else group["guid"]) or group["id"]
    return name in ("default_pg", "0") or (name == "undefined" and group["id"] == "0")
