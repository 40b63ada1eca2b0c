"""How much room shared memory has, as `df`, `mount`, `findmnt` and `docker inspect` show it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SHM_MARKS = (b" /dev/shm", b"\t/dev/shm", b"ShmSize", b"--shm-size")
_SIZE = r"(\d{1,18}(?:\.\d{1,3})?)([KMGTP]?)(?:i?B)?"
# `shm  64M  64M  0  100%  /dev/shm`
_DF = re.compile(rf"(?:^|\s){_SIZE}\s+{_SIZE}\s+{_SIZE}\s+(\d{{1,3}})%\s+/dev/shm\s*$")
# `shm on /dev/shm type tmpfs (rw,nosuid,size=65536k)`; in /proc/mounts without these words
_MOUNTED = re.compile(
    rf"\s/dev/shm\s.{{0,80}}?\b(?:tmpfs|shm)\b.{{0,200}}?[,(]size={_SIZE}", re.IGNORECASE
)
_DOCKER = re.compile(rf"\bShmSize['\"]?\s?[:=]\s?['\"]?{_SIZE}\b")
_STARTED = re.compile(
    rf"\b(?:docker|podman|nerdctl) .{{0,400}}--shm-size[ =]{_SIZE}(?![\w.])",
    re.IGNORECASE,
)
_HEAD = re.compile(r"^\s{0,8}Filesystem\s.{0,60}?\b(?:1([KMGB])-blocks|1024-blocks)\b")
_ASKED = re.compile(r"\bdf\b(?: \S{1,60}){0,6}? /dev/shm")
_UNITS = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
# The command, its heading, and rows of other mounts.
_MAX_STRANGERS = 4


class ShmReader:
    """Follows what one `df` prints: its heading tells the unit of numbers without one."""

    def __init__(self) -> None:
        self._left = 0
        self._unit = "K"

    @property
    def is_open(self) -> bool:
        """Whether the next line may be the heading."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the size of shared memory and what is free of it, in bytes."""
        text = line.text
        self._left -= bool(self._left)
        if match := _HEAD.match(text):
            self._unit = match[1] or "K"
        elif is_mark and (match := _DF.search(text)):
            size = _count(match[1], match[2] or self._unit)
            free = _count(match[5], match[6] or self._unit)
            yield _tell(line, row, size, free if int(match[7]) < 100 else 0)  # noqa: PLR2004
        elif is_mark and (match := _MOUNTED.search(text) or _STARTED.search(text)):
            size = _count(match[1], match[2].upper())
            yield _tell(line, row, size, size)
        elif is_mark and (match := _DOCKER.search(text)):
            size = _count(match[1], match[2])
            yield _tell(line, row, size, size)
        elif is_mark and _ASKED.search(text):
            self._left, self._unit = _MAX_STRANGERS, "K"


def _tell(line: LogLine, row: int, size: int, free: int) -> TabledSeen:
    return TabledSeen("table.shm", row, line, {"size": str(size), "free": str(free)})


def _count(number: str, unit: str) -> int:
    return int(float(number) * (1 << _UNITS[unit]))
