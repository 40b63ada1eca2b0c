"""Whose the rows of nvidia-smi are: its command, a heading or a name before them says the host."""

from __future__ import annotations

import re

from whystuck.parse.logs.blocks.tables.heads import NAME, read_command, read_head

_IDS = re.compile(r" (?:-i|--id)[ =]['\"]?(\d{1,3}(?:,\d{1,3}){0,63})\b")
# What pdsh and its like put before each line.
_BEFORE = re.compile(r"^([A-Za-z][\w.-]{1,62}): {1,2}(?=\S)")
# `node11 nvidia-smi -q:`, `on node11: nvidia-smi`, `root@node11:~# nvidia-smi`
_PROMPT = re.compile(
    rf"^\s{{0,4}}(?:[Oo]n |[\[(]?\w{{1,40}}@)?(?P<name>{NAME})[\]):>,]?(?:[~/ ][\w/~.-]{{0,60}})?"
    r"[\])]?[#$%>:]? {0,2}\bnvidia-smi\b"
)


class HostRows:
    """Follows what one command prints, of one host or of several.

    Attributes:
        host: The host of the last row, empty where nobody says it.
    """

    def __init__(self) -> None:
        self.host = ""
        self._ids: list[str] = []
        self._count = 0

    @property
    def asked(self) -> str:
        """The number of the one device that the command asked for; empty where it did for more."""
        return self._ids[0] if len(self._ids) == 1 else ""

    def begin(self, text: str) -> None:
        """Take a line with the command."""
        ids, head, prompt = _IDS.search(text), read_command(text), _PROMPT.match(text)
        self._ids = ids[1].split(",") if ids else []
        self._move(head.node if head else prompt["name"] if prompt else "")

    def read_head(self, text: str) -> bool:
        """Take a line; return whether it is a heading that names a host."""
        head = read_head(text)
        if head is None or not head.node:
            return False
        self._move(head.node)
        return True

    def cut(self, text: str) -> str:
        """Return a row without the host that stands before it."""
        before = _BEFORE.match(text)
        if before is None:
            return text
        if before[1] != self.host:
            self._move(before[1])
        return text[before.end() :]

    def place(self) -> str:
        """Return the device of the next row, where it does not say so: the one asked for there."""
        index = self._ids[self._count] if self._count < len(self._ids) else str(self._count)
        self._count += 1
        return index

    def _move(self, host: str) -> None:
        self.host, self._count = host, 0
