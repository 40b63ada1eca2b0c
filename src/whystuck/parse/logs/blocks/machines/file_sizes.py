"""Sizes of files that somebody looked at again and again, and what processes had written by then.

`ls -l`, `du` and `stat` in a loop show how large a file is, `/proc/PID/io` how many bytes a process
has written, and `pidstat -d` how many it writes each second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SIZE_MARKS = (
    b"ls -l",
    b"du -",
    b"stat -c",
    b"stat --format",
    b"-rw-r",
    b"-rw-------",
    b"-rw-rw",
    b"/proc/",
    b"kB_wr/s",
    b"pidstat",
    *(end + b" size" for end in (b".tmp", b".pt", b".pth", b".ckpt", b".bin", b".safetensors")),
    *(end + b": size" for end in (b".tmp", b".pt", b".pth", b".ckpt", b".bin", b".safetensors")),
    b".distcp size",
    b".distcp: size",
)
_ASKED = re.compile(r"\b(?:ls -l\w{0,6}|du -\w{1,6}|stat (?:-c|--format))[ =][^;|&\n]{0,200}")
# `ls -l FILE; sleep 60; ls -l FILE`
_SLEEP = re.compile(r"\bsleep (\d{1,5})(?![\w.])")
_FILE = re.compile(r"(/[\w./@+=-]{2,300}|[\w@+=-][\w./@+=-]{0,200}\.[A-Za-z]{2,12})(?![\w/])")
_LISTED = re.compile(
    r"(?:^|[\s|])-[r-][w-][rwxsStT-]{7}[.+@]?\s+\d{1,6}\s+\S{1,64}\s+\S{1,64}\s+"
    r"(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s+\S.{4,30}?\s(?P<file>\S{1,300})\s*$"
)
_USED = re.compile(
    r"^\s{0,8}(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s+(?P<file>\S*/\S{1,300})$"
)
# What is left of the rows of `ls -l` behind `awk '{print $5,$8,$9}'`: size, time and name.
_TIMED = re.compile(
    r"^\s{0,8}(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s{1,8}"
    r"(?:[A-Z][a-z]{2}\s{1,4}\d{1,2}\s{1,4}|\d{4}-\d\d-\d\d )?"
    r"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?: [+-]\d{4})?\s{1,8}"
    r"(?P<file>[\w./@+=-]{1,300}\.[A-Za-z]\w{1,12})\s*$"
)
_ALONE = re.compile(r"^\s{0,8}(?P<size>\d{4,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s*$")
# What a script of somebody prints at each look: `06:24:11 iter_40/optim.pt.tmp size 22 GiB`.
_SAID = re.compile(
    r"(?P<file>[\w./@+=-]{1,300}\.[A-Za-z]{2,12}):? size ?[=:]? ?"
    r"(?P<size>\d{1,6}(?:\.\d{1,3})? ?[KMGT]|\d{4,18}(?![\d.]))"
)
_TIME = re.compile(r"(?<![\d:])(\d\d):(\d\d):(\d\d)(?![\d:])")
_CLOCK = re.compile(r"^\s{0,4}(?:\S.{0,20} )?(\d\d):(\d\d):(\d\d)(?:[. ].{0,20})?$")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
_MAX_STRANGERS = 6
_MOST_FILES = 8
# `/proc/7001/io`, and what it shows; of what a process passed on, less may have reached the disk.
_IO = re.compile(r"/proc/(\d{1,9})/io\b")
_WRITTEN = re.compile(r"^\s{0,8}(?:/proc/\d{1,9}/io:)?write_bytes: (?P<bytes>\d{1,18})\s*$")
# `02:24:03 AM  1000  7001  0.00  37888.00  0.00  0  python`
_RATES = re.compile(
    r"^\d\d:\d\d:\d\d(?: [AP]M)?\s{1,8}\d{1,10}\s{1,12}(?P<pid>\d{1,9})\s{1,12}"
    r"\d{1,12}[.,]\d\d\s{1,12}(?P<rate>\d{1,12})[.,]\d\d\s"
)


class SizeReader:
    """Follows the looks at some files and processes."""

    def __init__(self) -> None:
        self._left = 0
        self._files: list[str] = []
        # How many sizes without a name came since the last round of looks began.
        self._count = 0
        self._clock = -1
        self._pid = ""
        # The seconds between two looks at the same place, and how the last one asked.
        self._apart = 0
        self._asked: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be sizes, or times."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the size that it tells, in bytes."""
        text = line.text
        clock = line.stamp.ns // 1_000_000_000 if line.stamp is not None else self._clock
        match = (_LISTED.search(text) or _SAID.search(text)) if is_mark else None
        if match is None and is_mark and self._begin(text):
            return
        if match is not None and clock < 0 and (found := _TIME.search(text[: match.start()])):
            clock = _count_seconds(found)
        if match is None and self.is_open:
            match = _TIMED.match(text) or _USED.match(text) or _ALONE.match(text)
        if match is not None:
            file = match.groupdict().get("file") or self._name_next()
            groups = {"bytes": str(_count(match["size"])), "file": file, "s": str(clock)}
            if self._apart and self.is_open:
                groups["apart"] = str(self._apart)
            yield TabledSeen("table.size", row, line, groups)
            self._left = _MAX_STRANGERS
        elif found := _CLOCK.match(text):
            self._clock, self._count = _count_seconds(found), 0
        elif (told := self._read_process(text)) is not None:
            yield TabledSeen("table.written", row, line, told | {"s": str(clock)})
            self._left = _MAX_STRANGERS
        else:
            self._left -= 1

    def _begin(self, text: str) -> bool:
        """Take a command that looks at files or at a process."""
        asked = [match[0] for match in _ASKED.finditer(text)]
        pids = set(_IO.findall(text))
        if not (asked or pids or "kB_wr/s" in text or "pidstat" in text):
            return False
        self._left = _MAX_STRANGERS
        if asked or pids:
            # A size stands for the file of its place among those that one round asks for.
            named = [_FILE.search(one) for one in asked[:_MOST_FILES]]
            self._files = [match[1] if match else "" for match in named]
            self._pid = pids.pop() if len(pids) == 1 else ""
            self._count, self._clock = 0, -1
            pause = _SLEEP.search(text)
            # One command may look twice, or two of them, the second after a pause.
            looks = [*self._asked, *(one.strip() for one in asked)]
            is_same = len(looks) > 1 and len(set(looks)) == 1
            self._apart = int(pause[1]) if pause and is_same else 0
            self._asked = looks[-1:]
        return True

    def _name_next(self) -> str:
        if not self._files:
            return ""
        file = self._files[self._count % len(self._files)]
        self._count += 1
        return file

    def _read_process(self, text: str) -> dict[str, str] | None:
        if not self.is_open:
            return None
        if self._pid and (match := _WRITTEN.match(text)):
            return {"pid": self._pid, "bytes": match["bytes"]}
        if match := _RATES.match(text):
            return {"pid": match["pid"], "rate": match["rate"]}
        return None


def _count_seconds(clock: re.Match[str]) -> int:
    hours, minutes, seconds = map(int, clock.groups())
    return (hours * 60 + minutes) * 60 + seconds


def _count(size: str) -> int:
    return int(size) if size.isdecimal() else int(float(size[:-1]) * (1 << _UNITS[size[-1]]))
