"""Counters of errors of ports, as perfquery, ethtool and files of the kernel show them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

ERROR_MARKS = (
    *(b"SymbolErr", b"LinkDowned", b"PortRcvErr", b"LinkErrorRec", b"perfquery"),
    *(b"symbol_err", b"link_downed", b"port_rcv_errors", b"link_down_events", b"link_error_rec"),
    b"ethtool -S",
)
_MAX_STRANGERS = 12
_CARD = r"(?:mlx[45]|hfi1|bnxt_re|irdma|rdma|roce|ionic|qedr)_?\d{1,3}"
# A command, a path or a heading names the card whose counters stand below or behind.
_NAMED = re.compile(rf"(?<![\w-])({_CARD})(?![\w-])")
_INTERFACE = re.compile(r"\bethtool -S ([a-z]\w{1,20})\b")
_HEAD = re.compile(rf"^[\W_]{{0,12}}({_CARD})(?:[ :/]{{1,3}}(?:port )?\d{{1,2}})?[\W_]{{0,12}}$")
_COUNT = re.compile(r"\b([A-Za-z][\w]{5,40})\s?(?:[:=]\s?\.{0,40}\s{0,20}|\.{2,40})(\d{1,18})\b")
# What each counter is called by these tools, in small letters, and what it counts.
_NAMES = {
    "symbolerrorcounter": "symbols",
    "symbolerrors": "symbols",
    "symbol_error": "symbols",
    "symbol_error_counter": "symbols",
    "rx_symbol_err_phy": "symbols",
    "rx_pcs_symbol_err_phy": "symbols",
    "linkdownedcounter": "downs",
    "linkdowned": "downs",
    "link_downed": "downs",
    "link_down_events_phy": "downs",
    "linkerrorrecoverycounter": "recoveries",
    "linkerrorrecovery": "recoveries",
    "link_error_recovery": "recoveries",
    "portrcverrors": "errors",
    "port_rcv_errors": "errors",
}


class PortErrorReader:
    """Follows the counters of one card at a time."""

    def __init__(self) -> None:
        self._card = ""
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may tell more of the same card."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the counters that it tells."""
        text = line.text[:400]
        found = [(name.lower(), count) for name, count in _COUNT.findall(text)]
        told = [(_NAMES[name], count) for name, count in found if name in _NAMES]
        if is_mark and not told:
            self._begin(text)
        elif head := _HEAD.match(text):
            self._card, self._left = head[1], _MAX_STRANGERS
        elif told:
            own = _NAMED.search(f"{line.owner}{text}")
            self._left = _MAX_STRANGERS
            for what, count in told:
                groups = {"card": own[1] if own else self._card, "what": what, "count": count}
                yield TabledSeen("table.port_errors", row, line, groups)
        elif text.strip():
            self._left -= 1

    def _begin(self, text: str) -> None:
        """Begin the card that a command asks for; where a loop asks for several, they are told."""
        cards = set(_NAMED.findall(text)) | set(_INTERFACE.findall(text))
        self._card = cards.pop() if len(cards) == 1 else ""
        self._left = _MAX_STRANGERS
