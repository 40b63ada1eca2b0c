"""Links of Ascend devices, as `hccn_tool -i N -link -g` and `-ip -g` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

NPU_LINK_MARKS = (b"hccn_tool ", b"link status: ")
_MAX_STRANGERS = 6
# A command names the device, or what a loop prints above its answers: `npu 3`, `=== device 3`.
_ASKED = re.compile(r"\bhccn_tool -i (\d{1,3}) ")
_HEAD = re.compile(
    r"^[\W_]{0,12}(?:(?:npu|NPU|device|dev|card|chip)(?:[ _-]?id)?[ :_=]{0,3})?"
    r"(\d{1,3})[\W_]{0,12}$"
)
_STATUS = re.compile(
    r"^\s{0,8}(?:(?:npu|NPU|device|dev)[ :_]{0,2}(\d{1,3})[: ]{1,3})?"
    r"link status: ?(UP|DOWN)\b"
)
_ADDRESS = re.compile(r"^\s{0,8}ip_?addr(?:ess)?: ?((?:\d{1,3}\.){3}\d{1,3})\b")
_STATES = {"UP": "active", "DOWN": "down"}


class NpuLinkReader:
    """Follows one device at a time: its state and its address stand in two answers."""

    def __init__(self) -> None:
        self._device = self._address = ""
        self._now: dict[str, str] | None = None
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may tell more of the links."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the link whose state it tells."""
        text = line.text[:400]
        if is_mark:
            self._left = _MAX_STRANGERS
        if match := _STATUS.match(text):
            if match[1] or self._now is not None:
                # The answer of the next device, whatever is printed above it.
                self._begin(match[1] or ("" if self._now else self._device))
            self._now = {"card": f"npu{self._device}", "port": "", "physical": "", "layer": "npu"}
            self._now |= {"state": _STATES[match[2]], "ip": self._address}
            self._left = _MAX_STRANGERS
            yield TabledSeen("table.port", row, line, self._now)
        elif match := _ADDRESS.match(text):
            self._left = _MAX_STRANGERS
            self._take_address(match[1])
        elif match := _ASKED.search(text) or _HEAD.match(text):
            if match[1] != self._device:
                self._begin(match[1])
            self._left = _MAX_STRANGERS
        elif text.strip():
            self._left -= 1
            if not self._left:
                self._begin("")

    def _begin(self, device: str) -> None:
        self._device, self._address, self._now = device, "", None

    def _take_address(self, address: str) -> None:
        if self._now is not None and not self._now["ip"]:
            self._now["ip"] = address
        else:
            self._begin(self._device if self._now is None else "")
            self._address = address
