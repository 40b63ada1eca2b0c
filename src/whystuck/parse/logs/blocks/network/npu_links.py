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
# `for i in $(seq 0 7); do hccn_tool -i $i -link -g; done`, which prints no numbers.
_LOOP = re.compile(
    r"\bfor (?P<name>\w{1,20}) in (?P<list>[^;]{1,200}); ?do\b.{0,200}\bhccn_tool -i "
    r"[\"']?\$\{?(?P=name)\b"
)
_RANGE = re.compile(r"(?:\bseq (?:-\w \S{1,4} )?|\{)(\d{1,3})(?: |\.\.)(\d{1,3})\b")
_MOST_DEVICES = 64
_STATES = {"UP": "active", "DOWN": "down"}


class NpuLinkReader:
    """Follows one device at a time: its state and its address stand in two answers."""

    def __init__(self) -> None:
        self._device = self._address = ""
        self._now: dict[str, str] | None = None
        self._left = 0
        self._asked: list[str] = []
        self._answers = 0

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
            self._take_answer(match[1] or "")
            self._now = {"card": self._name_card(), "port": "", "physical": "", "layer": "npu"}
            self._now |= {"state": _STATES[match[2]], "ip": self._address}
            self._left = _MAX_STRANGERS
            yield TabledSeen("table.port", row, line, self._now)
        elif match := _ADDRESS.match(text):
            self._left = _MAX_STRANGERS
            self._take_address(match[1])
        elif match := _LOOP.search(text):
            self._asked, self._answers = _list_devices(match["list"]), 0
            self._begin("")
        elif match := _ASKED.search(text) or _HEAD.match(text):
            if match[1] != self._device:
                self._begin(match[1])
            self._left = _MAX_STRANGERS
        elif text.strip():
            self._left -= 1
            if not self._left:
                self._asked, self._answers = [], 0
                self._begin("")

    def _take_answer(self, told: str) -> None:
        """Find whose answer comes next, where nothing above it says so."""
        self._answers += 1
        if told or self._now is not None:
            self._begin(told)
        if not self._device and self._answers <= len(self._asked):
            self._device = self._asked[self._answers - 1]

    def _name_card(self) -> str:
        return f"npu{self._device}" if self._device else f"npu (answer {self._answers})"

    def _begin(self, device: str) -> None:
        self._device, self._address, self._now = device, "", None

    def _take_address(self, address: str) -> None:
        if self._now is not None and not self._now["ip"]:
            self._now["ip"] = address
        else:
            self._begin(self._device if self._now is None else "")
            self._address = address


def _list_devices(text: str) -> list[str]:
    """Read the devices of a loop: a range, or one after the other; none where they are not told."""
    if match := _RANGE.search(text):
        numbers = range(int(match[1]), int(match[2]) + 1)
        return [str(number) for number in numbers[:_MOST_DEVICES]]
    words = text.split()
    is_plain = all(word.isdecimal() and len(word) < 4 for word in words)  # noqa: PLR2004
    return words[:_MOST_DEVICES] if is_plain else []
