"""How many devices hosts have, as people list them and count the lines.

A list has a line for each device; what counts lines prints one number, below the command, behind
or below the name of a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

COUNT_MARKS = (
    b"nvidia-smi -L",
    b"--list-gpus",
    b"--query-gpu=",
    b"lspci",
    b"ls /dev/nvidia",
    b"rocm-smi",
    b"amd-smi",
    b"npu-smi",
    b"device_count()",
    b"(UUID: GPU-",
)
_PROMPT = re.compile(
    r"^\[?(?:[\w.-]{1,40}@)?(?P<host>(?=[\w.-]*\d)[A-Za-z][\w.-]{0,62})?"
    r"(?:[: ][^\n#$%]{0,80})?\]? ?[#$%] ?(?P<command>.*)$"
)
_ELSEWHERE = re.compile(
    r"\b(?:srun|pdsh|clush|mpirun|mpiexec|ansible|parallel-ssh|for \w{1,20} in)\b"
)
_SSH = re.compile(r"\bssh (?:-\S{1,40} ){0,4}(?:\w{1,40}@)?([A-Za-z][\w.-]{1,62}) ")
_COUNTED = re.compile(r"\bwc -l|\bgrep (?:-\w{1,3} ){0,3}-\w{0,3}c\b|\bdevice_count\(\)")
# What is counted: all devices of a kind, by who tells of them.
_WHAT = {
    "driver": re.compile(
        r"nvidia-smi (?:-L|--list-gpus|--query-gpu=)|ls (?:-\w{1,4} )?/dev/nvidia\[?\d?"
        r"|(?:rocm|amd|npu)-smi"
    ),
    "pci": re.compile(r"\blspci\b"),
    "torch": re.compile(r"\bdevice_count\(\)"),
}
_HIDDEN = re.compile(r"\b(?:CUDA|HIP|ROCR|ASCEND\w*)_VISIBLE_DEVICES=")
_LISTS = re.compile(r"nvidia-smi (?:-L|--list-gpus)\s*$")
_LISTED = re.compile(r"^\s{0,8}GPU (\d{1,3}): .{1,80}\(UUID: GPU-")
_ALONE = re.compile(r"^\s{0,8}(\d{1,3})\s*$")
_LABELLED = re.compile(r"^\s{0,8}((?=[\w.-]*\d)[A-Za-z][\w.-]{0,62})\s?[:|=]?\s+(\d{1,3})\s*$")
_HOST = re.compile(r"^[-=*\s]{0,12}([A-Za-z][\w-]{0,40}[\w.-]{0,60}?\d[\w.-]{0,20})[-=*:\s]{0,12}$")
_MAX_STRANGERS = 4


class DeviceCountReader:
    """Follows what one command prints."""

    def __init__(self) -> None:
        self._left = 0
        self._host = self._what = ""
        self._listed: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be numbers, devices, or the name of a host."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the number of devices of a host."""
        text = line.text
        if match := _LISTED.match(text) if self.is_open or is_mark else None:
            yield from self._read_listed(line, row, int(match[1]))
        elif is_mark and self._begins(line):
            return
        elif self._left:
            self._left -= 1
            yield from self._read_number(line, row)

    def _begins(self, line: LogLine) -> bool:
        text = line.text
        prompt = _PROMPT.match(text)
        command = prompt["command"] if prompt else ""
        is_count = _COUNTED.search(command) is not None
        what = next((name for name, form in _WHAT.items() if form.search(command)), "")
        is_look = bool(what) and (is_count or _LISTS.search(command) is not None)
        if not is_look or _HIDDEN.search(command):
            self._left = 0
            return bool(what)
        ssh = _SSH.search(command)
        host = line.node or (prompt["host"] if prompt else "") or ""
        host = ssh[1] if ssh and "$" not in ssh[1] else host
        self._host = "" if _ELSEWHERE.search(command) else host
        self._what = what if is_count else "list"
        self._listed, self._left = {}, _MAX_STRANGERS
        return True

    def _read_listed(self, line: LogLine, row: int, index: int) -> Iterator[TabledSeen]:
        """Take a device of a list, which is as long as the number of its last one tells."""
        if not self.is_open or self._what != "list":
            return
        self._left = _MAX_STRANGERS
        host = line.node or self._host
        if self._listed.get("host") != host or index == 0:
            self._listed = {"host": host, "count": "0", "what": "driver"}
            yield TabledSeen("table.device_count", row, line, self._listed)
        self._listed["count"] = str(int(self._listed["count"]) + 1)

    def _read_number(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        text = line.text
        if self._what == "list":
            if match := _HOST.match(text):
                self._host, self._left = match[1], _MAX_STRANGERS
        elif match := _ALONE.match(text):
            yield self._tell(line, row, match[1], self._host)
        elif match := _LABELLED.match(text):
            yield self._tell(line, row, match[2], match[1])
        elif match := _HOST.match(text):
            self._host, self._left = match[1], _MAX_STRANGERS
        elif _PROMPT.match(text):
            self._left = 0

    def _tell(self, line: LogLine, row: int, count: str, host: str) -> TabledSeen:
        self._left = _MAX_STRANGERS
        groups = {"host": line.node or host, "count": count, "what": self._what}
        return TabledSeen("table.device_count", row, line, groups)
