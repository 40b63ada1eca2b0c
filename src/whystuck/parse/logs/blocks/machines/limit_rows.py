"""How much memory processes of a host may lock, as shells and tools print it.

`ulimit -l` prints one number, in KiB; what runs it on several hosts prints the name of each before
it, on its line or above. Where the same command prints more numbers, their order is that of its
parts. `ulimit -a`, `/proc/PID/limits`, prlimit, libibverbs and Open MPI name
what they print, the last four in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

LIMIT_MARKS = (
    b"ulimit -l",
    b"ulimit -a",
    b"/limits",
    b"prlimit",
    b"ax locked memory",
    b"max locked-in-memory",
    b"RLIMIT_MEMLOCK is",
    b"emlock limit:",
    b"Local host: ",
)
_SIZE = r"(unlimited|\d{1,20})"
_NAMED = (
    (1024, re.compile(rf"max locked memory\s.{{0,40}}?-l\)\s+{_SIZE}\s*$")),
    (1, re.compile(rf"Max locked memory\s+{_SIZE}\b")),
    (1, re.compile(rf"MEMLOCK\s+max locked-in-memory address space\s+{_SIZE}\b")),
    (1, re.compile(rf"RLIMIT_MEMLOCK is {_SIZE} bytes")),
    # UCX, of its own process
    (1024, re.compile(rf"max locked memory \(ulimit -l\) .{{0,40}}\(current: {_SIZE} kbytes\)")),
    (1, re.compile(rf"[Mm]emlock limit:\s+{_SIZE}\b")),
)
# What scripts echo, behind the name of their host.
_ECHOED = re.compile(
    rf"^\s{{0,8}}(?:([A-Za-z][\w.-]{{0,62}})[\s:|]{{1,4}})?ulimit -l\s?[:=]\s{{0,4}}{_SIZE}\s*$"
)
# What prints the number alone.
_BARE = "ulimit -l"
_ASKED = re.compile(r"\bulimit -[al]|/proc/\w{1,10}/limits|\bprlimit\b")
# A prompt before a command: what is printed below is of its host, if it runs there.
_PROMPT = re.compile(r"^\[?(?:[\w.-]{1,32}@)([\w.-]{1,64})[^$#>]{0,80}[$#>] ")
_ELSEWHERE = re.compile(r"\b(?:srun|ssh|pdsh|clush|mpirun|mpiexec|kubectl|parallel-ssh|ansible)\b")
_ALONE = re.compile(rf"^\s{{0,8}}{_SIZE}\s*$")
_LABELLED = re.compile(
    r"^\s{0,8}([A-Za-z][\w.-]{0,62})\s?[:|=]?((?:\s{1,8}(?:unlimited|\d{1,20})){1,6})\s*$"
)
# `n7 memlock=64 nofile=1024`
_WORDED = re.compile(
    rf"^\s{{0,8}}(?:([A-Za-z][\w.-]{{0,62}})[\s:|]{{1,4}})?(?:[\w ]{{1,20}}=\w{{1,20}}\s){{0,4}}"
    rf"(?:mem_?lock|locked|ulimit_l)\s?[=:]\s?{_SIZE}\b",
    re.IGNORECASE,
)
# Parts of a command, and those that print one number each.
_PART = re.compile(r";|&&|\|\||\$\(|`")
_COUNTS = re.compile(
    r"\bulimit (?:-[SH] )?-[a-zA-Z]\b|\bnproc\b|\bwc -l|\bgrep -c|\bgetconf\b"
    r"|\bcat /(?:proc/sys|sys)/"
)
_HOST = re.compile(r"^[-=*\s]{0,12}([A-Za-z][\w-]{0,40}[\w.-]{0,60}?\d[\w.-]{0,20})[-=*:\s]{0,12}$")
_LOCAL_HOST = re.compile(r"^\s{0,8}Local host:\s+([\w.-]{1,100})\s*$")
# What else the same command prints on each host.
_MAX_STRANGERS = 6
# Where all limits of a process are printed, that one stands below others.
_MAX_LIMITS = 16


class LimitReader:
    """Follows what one command prints."""

    def __init__(self) -> None:
        self._left = 0
        self._host = ""
        self._asked = 0
        self._is_bare = False
        # Which number of each host is the limit, of how many.
        self._place, self._count = 0, 1
        self._seen: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be limits, or the name of a host."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the limit that it tells, in KiB."""
        text = line.text
        if is_mark:
            for unit, pattern in _NAMED:
                if match := pattern.search(text):
                    yield self._tell(line, row, (match[1], unit), self._host * self.is_open)
                    return
            if match := _ECHOED.match(text):
                yield self._tell(line, row, (match[2], 1024), match[1] or "")
            elif match := _LOCAL_HOST.match(text):
                self._host, self._left = match[1], _MAX_STRANGERS
                self._is_bare = False
            elif _ASKED.search(text):
                prompt = _PROMPT.match(text)
                is_here = prompt is not None and not _ELSEWHERE.search(text)
                self._host = prompt[1] if prompt is not None and is_here else ""
                self._asked, self._is_bare = row, _BARE in text
                self._place, self._count = _find_place(text) if self._is_bare else (0, 1)
                self._seen = {}
                self._left = _MAX_STRANGERS if self._is_bare else _MAX_LIMITS
            return
        self._left -= 1
        yield from self._read_bare(line, row)

    def _read_bare(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        """Read what stands below a command: numbers, behind or below the name of a host."""
        text = line.text
        if self._is_bare and (match := _ALONE.match(text)):
            yield from self._count_number(line, row, match[1], self._host)
        elif self._is_bare and (match := _LABELLED.match(text)):
            for size in match[2].split():
                yield from self._count_number(line, row, size, match[1])
        elif self._is_bare and (match := _WORDED.match(text)):
            self._left = _MAX_STRANGERS
            yield self._tell(line, row, (match[2], 1024), match[1] or self._host)
        elif match := _LOCAL_HOST.match(text) or _HOST.match(text):
            self._host, self._left = match[1], _MAX_LIMITS
            self._seen.pop(match[1], None)

    def _count_number(self, line: LogLine, row: int, size: str, host: str) -> Iterator[TabledSeen]:
        """Take one number of a host; yield it where it is the limit, by its place."""
        self._left = _MAX_STRANGERS
        place = self._seen.get(line.node or host, 0)
        self._seen[line.node or host] = place + 1
        # One number too many may be of anything.
        if place == self._place or place >= self._count:
            yield self._tell(line, row, (size, 1024), host)

    def _tell(self, line: LogLine, row: int, told: tuple[str, int], host: str) -> TabledSeen:
        size, unit = told
        kib = size if size == "unlimited" else str(int(size) * unit // 1024)
        groups = {"kib": kib, "host": line.node or host, "asked": str(self._asked)}
        return TabledSeen("table.memlock", row, line, groups)


def _find_place(command: str) -> tuple[int, int]:
    """Return which of the numbers that a command prints is the limit, and how many it prints."""
    parts = [part for part in _PART.split(command) if _COUNTS.search(part)]
    place = next((at for at, part in enumerate(parts) if _BARE in part), 0)
    return place, max(1, len(parts))
