"""Sizes of a file that somebody looked at again and again: `ls -l`, `du` and `stat` in a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tabled import TabledSeen
from whystuck.parse.logs.lines import LogLine

SIZE_MARKS = (b"ls -l", b"du -", b"stat -c", b"stat --format", b"-rw-r", b"-rw-------", b"-rw-rw")
_ASKED = re.compile(r"\b(?:ls -l\w{0,6}|du -\w{1,6}|stat (?:-c|--format))[ =].{0,200}")
_FILE = re.compile(r"(/[\w./@+=-]{2,300}|[\w@+=-][\w./@+=-]{0,200}\.[A-Za-z]{2,12})(?![\w/])")
_LISTED = re.compile(
    r"(?:^|[\s|])-[r-][w-][rwxsStT-]{7}[.+@]?\s+\d{1,6}\s+\S{1,64}\s+\S{1,64}\s+"
    r"(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s+\S.{4,30}?\s(?P<file>\S{1,300})\s*$"
)
_USED = re.compile(
    r"^\s{0,8}(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s+(?P<file>\S*/\S{1,300})$"
)
_ALONE = re.compile(r"^\s{0,8}(?P<size>\d{4,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s*$")
_CLOCK = re.compile(r"^\s{0,4}(?:\S.{0,20} )?(\d\d):(\d\d):(\d\d)(?:[. ].{0,20})?$")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
_MAX_STRANGERS = 6


class SizeReader:
    """Follows the looks at one file."""

    def __init__(self) -> None:
        self._left = 0
        self._file = ""
        self._clock = -1

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be sizes, or times."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the size that it tells, in bytes."""
        text = line.text
        clock = line.stamp.ns // 1_000_000_000 if line.stamp is not None else self._clock
        match = _LISTED.search(text) if is_mark else None
        if match is None and is_mark and (asked := _ASKED.search(text)):
            named = _FILE.search(asked[0])
            self._file, self._clock = named[1] if named else "", -1
            self._left = _MAX_STRANGERS
            return
        if match is None and self.is_open:
            match = _USED.match(text) or _ALONE.match(text)
        if match is not None:
            file = match.groupdict().get("file") or self._file
            groups = {"bytes": str(_count(match["size"])), "file": file, "s": str(clock)}
            yield TabledSeen("table.size", row, line, groups)
            self._left = _MAX_STRANGERS
        elif found := _CLOCK.match(text):
            hours, minutes, seconds = map(int, found.groups())
            self._clock = (hours * 60 + minutes) * 60 + seconds
        else:
            self._left -= 1


def _count(size: str) -> int:
    return int(size) if size.isdecimal() else int(float(size[:-1]) * (1 << _UNITS[size[-1]]))
