"""Whether the fabric manager of a host runs, as `systemctl` and the log of systemd tell it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.heads import read_command
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SERVICE_MARKS = (b"nvidia-fabricmanager", b"NVIDIA fabric manager service")
_STATE = re.compile(
    r"^\s{0,12}(?:Active: )?(?P<state>failed|inactive|deactivating|activating|active)"
    r"(?:\s\(.{1,60}\).{0,120})?\s{0,4}$"
)
# `nvidia-fabricmanager.service: Failed with result 'exit-code'.`
_FAILED = re.compile(
    r"nvidia-fabricmanager(?:\.service)?: (?:Failed with result|(?:Main|Control) process exited"
    r"|Start request repeated too quickly)|Failed to start .{0,40}(?:NVIDIA fabric manager"
    r"|nvidia-fabricmanager)|Unit nvidia-fabricmanager(?:\.service)? could not be found"
)
_STARTED = re.compile(r"Started .{0,40}(?:NVIDIA fabric manager|nvidia-fabricmanager)")
# One row of `systemctl list-units`: `nvidia-fabricmanager.service loaded failed failed NVIDIA ...`
_UNIT = re.compile(
    r"nvidia-fabricmanager\.service\s{1,20}(?:loaded|not-found|masked)\s{1,20}"
    r"(?P<state>failed|inactive|active)\b"
)
_OTHER = re.compile(r"\b[\w@.-]{1,60}\.(?:service|socket|timer) - ")
_PROMPT = re.compile(r"^\[?[\w.-]{1,40}@(?P<host>[A-Za-z][\w.-]{1,62})[: ]?[^\n#$%]{0,80}[#$%] ")
# The head of a unit, where it is loaded from, and what else is configured for it.
_MAX_STRANGERS = 6


class ServiceReader:
    """Follows what one of these prints."""

    def __init__(self) -> None:
        self._left = 0
        self._host = ""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may tell the state."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the state that it tells."""
        state = ""
        if is_mark:
            state = self._begin(line.text)
        elif match := _STATE.match(line.text):
            state, self._left = match["state"], 0
        elif _OTHER.search(line.text):
            self._left = 0
        else:
            self._left -= 1
        if state:
            groups = {"state": state, "host": line.node or self._host}
            yield TabledSeen("table.service", row, line, groups)

    def _begin(self, text: str) -> str:
        """Take a line about the service; return the state where it says it by itself."""
        if match := _UNIT.search(text):
            return match["state"]
        if _FAILED.search(text):
            return "failed"
        if _STARTED.search(text):
            return "active"
        if "systemctl" in text:
            head, prompt = read_command(text), _PROMPT.match(text)
            self._host = head.node if head else prompt["host"] if prompt else ""
        self._left = _MAX_STRANGERS
        return ""
