"""Interfaces of a network, with state and addresses, as `ip -br addr` and `ip -br link` show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

INTERFACE_MARKS = (b"ip -br", b"ip --br", b"ip -4 -br", b"ip -6 -br")
_COMMAND = re.compile(r"\bip (?:-[46] )?-{1,2}br(?:ief)? (?:a|addr|address|l|link)\b")
# What pdsh and its like put before each line; the host that a command of ssh, or a prompt, is of.
_ROW = re.compile(
    r"^(?:(?P<host>[A-Za-z][\w.-]{1,62}): {1,2})?\s{0,4}(?P<card>[A-Za-z][\w.-]{1,40})"
    r"(?:@\S{1,40})?\s{1,40}(?P<state>UP|DOWN|LOWERLAYERDOWN|UNKNOWN)"
    r"(?:\s{1,40}(?P<address>\S{1,60})[^\n]*)?\s*$"
)
_OF = re.compile(
    r"\bssh (?:-\S{1,40} )?(?:\w{1,40}@)?(?P<ssh>[A-Za-z][\w.-]{1,62}) "
    r"|^\[?(?:\w{1,40}@)?(?P<prompt>[A-Za-z][\w.-]{1,62})[: ~\]][^$#>]{0,40}[$#>] "
)


class InterfaceReader:
    """Follows what one command prints."""

    def __init__(self) -> None:
        self._host = ""
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the interface that it tells."""
        if is_mark and (command := _COMMAND.search(line.text)):
            match = _OF.search(line.text, 0, command.start())
            self._host = (match["ssh"] or match["prompt"]) if match else ""
            self._left = MAX_STRANGERS
        elif self._left and (found := _ROW.match(line.text)):
            self._left = MAX_STRANGERS
            told = {name: found[name] or "" for name in ("card", "address")}
            state = "down" if found["state"].endswith("DOWN") else found["state"].lower()
            host = found["host"] or self._host
            own = replace(line, node=host) if host else line
            yield TabledSeen("table.interface", row, own, told | {"state": state})
        elif line.text.strip():
            self._left = max(0, self._left - 1)
