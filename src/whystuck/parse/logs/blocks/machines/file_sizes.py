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
# `ls -l FOLDER/   # 11:09, then 11:10`: who pasted it says that it shows two looks.
_NOTE = re.compile(r"\s#\s?(\S.{0,100})$")
_TWO_TIMES = re.compile(
    r"(?<![\d:])(\d\d):(\d\d)(?::(\d\d))?(?:,? (?:and |then |again (?:at )?|later )+|,? ?-+> ?|, ?)"
    r"(?:at )?(\d\d):(\d\d)(?::(\d\d))?(?![\d:])"
)
_APART = re.compile(
    r"\b(?P<count>an?|one|two|three|five|ten|\d{1,4}) ?"
    r"(?P<unit>s|secs?|seconds?|min|minutes?|h|hours?) "
    r"(?:apart|later|between)\b"
)
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "five": 5, "ten": 10}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_FILE = re.compile(r"(/[\w./@+=-]{2,300}|[\w@+=-][\w./@+=-]{0,200}\.[A-Za-z]{2,12})(?![\w/])")
_LISTED = re.compile(
    r"(?:^|[\s|])-[r-][w-][rwxsStT-]{7}[.+@]?\s+\d{1,6}\s+\S{1,64}\s+\S{1,64}\s+"
    r"(?P<size>\d{1,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s+\S.{4,30}?\s(?P<file>\S{1,300})\s*$"
)
# The same where the time of the look is in front, and that of the file is left out.
_LED = re.compile(
    r"^\s{0,4}(?:(?P<at>\d\d:\d\d:\d\d)\s{1,8})?-[r-][w-][rwxsStT-]{7}[.+@]?\s{1,8}\d{1,6}\s{1,8}"
    r"\S{1,64}\s{1,8}\S{1,64}\s{1,8}(?P<size>\d{4,18}|\d{1,6}(?:\.\d{1,3})?[KMGT])\s{1,8}"
    r"(?P<file>[\w./@+=-]{1,300}\.[A-Za-z]\w{1,12})\s{0,8}$"
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
        # The whole line that asked, and the time of the last size that it showed.
        self._command = ""
        self._shown: tuple[str, str, int] = ("", "", -1)

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be sizes, or times."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the size that it tells, in bytes."""
        text = line.text
        clock = line.stamp.ns // 1_000_000_000 if line.stamp is not None else self._clock
        match = _find_named(text) if is_mark else None
        if match is None and is_mark and self._begin(text):
            return
        if match is not None and (found := _find_time(text, match, is_known=clock >= 0)):
            clock = _count_seconds(found)
        if match is None and self.is_open:
            match = _TIMED.match(text) or _USED.match(text) or _ALONE.match(text)
        if match is not None:
            file = match.groupdict().get("file") or self._name_next()
            groups = {"bytes": str(_count(match["size"])), "file": file, "s": str(clock)}
            if self.is_open and (apart := self._apart or self._count_apart(file, clock)):
                groups["apart"] = str(apart)
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
            self._apart = int(pause[1]) if pause and is_same else _read_note(text, asked)
            self._asked = looks[-1:]
            self._command = text.strip()
        return True

    def _count_apart(self, file: str, clock: int) -> int:
        """Return the seconds since the same command, at the same prompt, showed that file."""
        command, shown, before = self._shown
        self._shown = self._command, file, clock
        is_same = bool(command) and (command, shown) == (self._command, file)
        return max(clock - before, 0) if is_same and min(clock, before) >= 0 else 0

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


def _find_time(text: str, match: re.Match[str], *, is_known: bool) -> re.Match[str] | None:
    """Find the time in front of a size; one that its own row begins with is always that."""
    if at := match.groupdict().get("at"):
        return _TIME.match(at)
    return None if is_known else _TIME.search(text[: match.start()])


def _find_named(text: str) -> re.Match[str] | None:
    return _LISTED.search(text) or _LED.search(text) or _SAID.search(text)


def _read_note(text: str, asked: list[str]) -> int:
    """Return the seconds between two looks, where a note behind the only command tells of them.

    `ls` lists each name of a folder once; of several folders, or what is below, it may be twice.
    """
    note = _NOTE.search(text)
    if note is None or len(asked) != 1 or not asked[0].startswith("ls "):
        return 0
    words = asked[0].partition("#")[0].split()[1:]
    options = [word for word in words if word.startswith("-")]
    places = [word for word in words if not word.startswith("-")]
    is_deep = any("R" in word or word == "--recursive" for word in options if "=" not in word)
    if len(places) > 1 or is_deep or any(mark in "".join(places) for mark in "*?{[$"):
        return 0
    if found := _TWO_TIMES.search(note[1]):
        first, second = (
            (int(found[at]) * 60 + int(found[at + 1])) * 60 + int(found[at + 2] or 0)
            for at in (1, 4)
        )
        return max(second - first, 0)
    if found := _APART.search(note[1]):
        count = _NUMBERS.get(found["count"]) or int(found["count"])
        return count * _SECONDS[found["unit"][0]]
    return 0


def _count_seconds(clock: re.Match[str]) -> int:
    hours, minutes, seconds = map(int, clock.groups())
    return (hours * 60 + minutes) * 60 + seconds


def _count(size: str) -> int:
    return int(size) if size.isdecimal() else int(float(size[:-1]) * (1 << _UNITS[size[-1]]))
