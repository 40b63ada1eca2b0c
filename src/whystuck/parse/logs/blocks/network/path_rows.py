"""What `ping`, `ss` and `netstat` tell of the way between two hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

PING_MARKS = (b"ping -", b"ping6 -", b"PING ", b" packets transmitted, ")
SOCKET_MARKS = (b"ESTAB ", b"ESTABLISHED ")
# `ping -c 3 -M do -s 8972 10.20.0.6`, and what it prints first
_COMMAND = re.compile(r"(?:^|[\s$#>;])ping6? (?P<words>-[^|;&\n]{1,160})")
_SIZE = re.compile(r"(?:^|\s)-s ?(\d{1,5})(?=\s|$)")
_USUAL_SIZE = "56"
_BEGUN = re.compile(
    r"^PING (?P<peer>\S{1,80}) ?\(\S{1,80}\)(?: from \S{1,80}(?: \S{1,20})?:)? "
    r"(?P<size>\d{1,5})\(\d{1,5}\) bytes of data"
)
_LOSS = re.compile(
    r"\b(?P<sent>\d{1,7}) packets transmitted, (?P<got>\d{1,7}) (?:packets )?received, "
    r"(?:(?P<errors>\+\d{1,7} errors), )?(?P<lost>\d{1,3}(?:\.\d{1,6})?)% packet loss"
)
_END = r"(?P<{0}>[\w.:\[\]%-]{{2,60}}):(?P<{0}_port>\d{{1,5}})"
_SOCKET = re.compile(
    rf"^(?:tcp\s{{1,8}})?ESTAB\s{{1,12}}\d{{1,12}}\s{{1,20}}(?P<queue>\d{{1,12}})\s{{1,40}}"
    rf"{_END.format('own')}\s{{1,60}}{_END.format('peer')}(?=\s|$)"
    rf"|^tcp6?\s{{1,12}}\d{{1,12}}\s{{1,20}}(?P<queue2>\d{{1,12}})\s{{1,40}}"
    rf"{_END.format('own2')}\s{{1,60}}{_END.format('peer2')}\s{{1,40}}ESTABLISHED\b"
)
# How often the same bytes were sent and nothing came back, as ss, its timers and netstat tell it.
_TRIES = re.compile(
    r"\bbackoff:(\d{1,3})\b|\btimer:\(on,[\w.]{1,20},(\d{1,3})\)|\son \(\d[\d.]{0,12}/(\d{1,3})/"
)
_UNACKED = re.compile(r"\bunacked:(\d{1,9})\b")


class PingReader:
    """Remembers what was asked for last; reads single lines."""

    is_open = False

    def __init__(self) -> None:
        self._peer = self._size = ""

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield how many packets of which size got through."""
        if not is_mark:
            return
        text = line.text
        if match := _COMMAND.search(text):
            size = _SIZE.search(match["words"])
            words = match["words"].split("#")[0].split()
            # A size that is a variable is told by what ping prints first.
            is_told = size is not None or "-s" not in words
            self._peer = words[-1] if words and is_told else ""
            self._size = size[1] if size else _USUAL_SIZE
        elif match := _BEGUN.match(text):
            self._peer, self._size = match["peer"], match["size"]
        elif (match := _LOSS.search(text)) and self._peer:
            told = {"peer": self._peer, "size": self._size, "lost": match["lost"]}
            told["errors"] = match["errors"] or ""
            self._peer = self._size = ""
            yield TabledSeen("table.ping", row, line, told)


class SocketReader:
    """Follows one connection at a time: what is told of it stands in the line behind it as well."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether the next line may be of a connection."""
        return bool(self._told)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the connection whose bytes wait, and one whose are sent again."""
        text = line.text.lstrip()
        match = _SOCKET.match(text) if is_mark else None
        if match is not None:
            own, peer = match["own"] or match["own2"], match["peer"] or match["peer2"]
            ports = [int(match[name] or 0) for name in match.groupdict() if name.endswith("_port")]
            self._told = {
                "own": _strip(own),
                "peer": _strip(peer),
                "port": str(min(filter(None, ports), default=0)),
                "queue": match["queue"] or match["queue2"],
            }
            if int(self._told["queue"]):
                yield TabledSeen("table.send_queue", row, line, dict(self._told))
        told, tries = self._told, _TRIES.search(text)
        if match is None or tries:
            self._told = {}
        if told and tries:
            unacked = _UNACKED.search(text)
            told |= {"tries": next(filter(None, tries.groups()))}
            yield TabledSeen(
                "table.socket", row, line, told | {"unacked": unacked[1] if unacked else "0"}
            )


def _strip(address: str) -> str:
    """Return an address without its interface, and one of IPv4 as such."""
    return address.strip("[]").partition("%")[0].removeprefix("::ffff:").strip("[]")
