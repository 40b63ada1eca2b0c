"""Splits of an all-to-all that ranks print before they call it: `in_splits=[4, 2] out_splits=...`.

Names of the two lists differ, and both stand in one line or in a line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SPLIT_MARKS = (
    *(b"in_splits", b"out_splits", b"put_splits", b"put splits", b"in splits", b"out splits"),
    *(b"split_sizes", b"send_splits", b"recv_splits", b"send splits", b"recv splits"),
    *(b"send_counts", b"recv_counts", b"sendcounts", b"recvcounts", b"send counts", b"recv counts"),
    *(b"send=[", b"recv=[", b"send: [", b"recv: [", b"send [", b"recv [", b"send=tensor"),
)
_LIST = re.compile(
    r"(?<![a-z])(?P<way>in|input|send|out|output|recv|receive)"
    r"(?:[_ ]?(?:splits?(?:[_ ]?sizes)?|counts))?"
    r"(?: (?:to|from) (?:ranks? )?(?P<span>\[\d{1,7}(?:\.{2,3}|-)\d{1,7}\]))?"
    r"\s?[=:]?\s?(?:tensor\()?"
    r"[\[(](?P<sizes>\d{1,12}(?:[, ] {0,8}\d{1,12}){1,1023})[\])]",
    re.IGNORECASE,
)
_GIVEN = {"in", "input", "send"}
# A rank of a part of the job is another number than that of the job.
_RANK = re.compile(
    r"(?P<part>\b(?:ep|tp|dp|pp|cp|sp|local|group|expert|node)[ _-]?)?"
    r"(?<![a-z])(?:rank[ _=:#]{0,2}|r)(?P<rank>\d{1,7})\b",
    re.IGNORECASE,
)
# A seat in a part of the job, of a line that has no rank.
_SEAT = re.compile(
    r"\b(?P<kind>ep|tp|cp|sp)(?:[ _-]?rank|r)?[ _=:#]{0,2}(?P<seat>\d{1,6})\b", re.IGNORECASE
)
# Which call it is.
_COUNTED = re.compile(
    r"(?<![a-z])(?:l|layers?|steps?|iter|iteration|it|epoch|mb|micro_?batch|call|seq|chunk|block"
    r"|moe|n)[ =:_#]{0,2}\d{1,9}(?![\w.])",
    re.IGNORECASE,
)


class SplitReader:
    """Reads single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield each list in it, with the rank that it is of and which call it is.

        The ``span`` is of the ranks that it is about, where it tells them: `0 3`. The ``seat`` is
        that in a group of the kind ``part``.
        """
        lists = list(_LIST.finditer(line.text)) if is_mark else []
        if not lists:
            return
        before = line.text[: lists[0].start()]
        named = {match["rank"] for match in _RANK.finditer(before) if not match["part"]}
        own = named.pop() if len(named) == 1 else ""
        seats = {(one["kind"].lower(), one["seat"]) for one in _SEAT.finditer(before)}
        part, seat = seats.pop() if len(seats) == 1 else ("", "")
        call = " ".join(_COUNTED.findall(_RANK.sub(" ", before))).lower()
        for match in lists:
            groups = {
                "own": own if own and int(own) <= MAX_RANK else "",
                "way": "given" if match["way"].lower() in _GIVEN else "taken",
                "sizes": " ".join(re.findall(r"\d+", match["sizes"])),
                "call": call,
                "part": part,
                "seat": seat,
                "span": " ".join(re.findall(r"\d+", match["span"] or "")),
            }
            yield TabledSeen("table.splits", row, line, groups)
