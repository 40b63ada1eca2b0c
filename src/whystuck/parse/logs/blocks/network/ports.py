"""Ports of InfiniBand and RoCE, as `ibstat`, `ibstatus`, `ibv_devinfo`, `rdma link` show them.

And links of interfaces, as `ethtool` and `ip link` do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

PORT_MARKS = (
    b"CA '",
    b"Infiniband device '",
    b"hca_id:",
    b" physical_state ",
    b" port 1 ==> ",
    b"mlxlink ",
    b"ethtool ",
    b"Settings for ",
    b"Link detected: ",
    b"<NO-CARRIER",
    b"/sys/class/infiniband/",
    b" Gb/sec (",
    b"ibstat ",
    b"ibstatus ",
)
_MAX_STRANGERS = 3
# mlxlink prints its fields in sections.
_MAX_ASKED = 12

_CARD = r"[a-z][\w.-]{1,40}"
_HEAD = re.compile(
    rf"^\s{{0,4}}(?:CA '({_CARD})'|hca_id:\s{{1,8}}({_CARD})"
    rf"|Infiniband device '({_CARD})' port (\d{{1,3}}) status:)\s*$"
)
_LINE = re.compile(
    rf"\blink ({_CARD})/(\d{{1,3}}) (?:subnet_prefix .{{0,120}} )?state ([A-Z]{{3,20}}) "
    r"physical_state ([A-Za-z_]{3,40})"
)
_NETDEV = re.compile(rf"^\s{{0,4}}({_CARD}) port (\d{{1,3}}) ==> (\S{{1,40}}) \((Up|Down)\)")
# An interface of which `ethtool` is asked, and what it says of its link.
_ETHTOOL = re.compile(rf"\bethtool ({_CARD})(?:\s|$)|^\s{{0,4}}Settings for ({_CARD}):")
_DETECTED = re.compile(r"^\s{0,24}Link detected: (yes|no)\b")
# `7: eth0: <NO-CARRIER,BROADCAST,UP> mtu 9000 qdisc mq state DOWN`, `eth0 DOWN MAC <NO-CARRIER,UP>`
_CARRIER = re.compile(
    rf"^\s{{0,4}}(?:\d{{1,4}}: )?({_CARD})(?:@\S{{1,40}})?:?\s.{{0,60}}?"
    r"<NO-CARRIER,[A-Z,_-]{0,80}\bUP>"
)
# What a file of the kernel says of one port: `1: DOWN`
_FILE = re.compile(rf"\bcat /sys/class/infiniband/({_CARD})/ports/(\d{{1,3}})/state\s*$")
# a number and a colon may be taken for a prefix
_IN_FILE = re.compile(r"^\s{0,4}(?:\d: )?(DOWN|ACTIVE|INIT|ARMED)\s*$")
# A card of which `mlxlink` is asked; its fields are wide.
_ASKED = re.compile(rf"\bmlxlink (?:-\S{{1,20}} )?(?:-d|--device) ({_CARD})(?:\s|$)")
_WIDTH = re.compile(r"^\s{0,4}Width\s{0,40}: (\d{1,2})[xX]\s*$")
_SPEED = re.compile(r"^\s{0,4}Speed\s{0,40}: (IB-)?\w{2,20}\s*$")
# A row for each card, as a loop over the files of their rates prints them.
_RATED = re.compile(
    rf"^\s{{0,4}}(?:/\S{{0,60}}/)?(?!rate\b)(?P<card>{_CARD}?)(?:/ports/(?P<port>\d{{1,3}})/rate|/(?P<at>\d{{1,3}}))?"
    r"(?:\s?[:=|]\s{0,8}|\s{1,8})(?:rate:? )?(?P<rate>\d{1,4}(?:\.\d)?) Gb/sec "
    r"\((?P<lanes>\d{1,2})X\b"
)
_PORT = re.compile(r"^\s{0,24}[Pp]ort\s?:?\s{0,8}(\d{1,3}):?\s*$")
_FIELD = re.compile(r"^\s{0,32}([A-Za-z][A-Za-z _]{2,30}):\s{0,8}(\S.{0,60})?$")
# Names of fields, by tool, in small letters.
_FIELDS = {
    "state": "state",
    "physical state": "physical",
    "phys state": "physical",
    "phys_state": "physical",
    "link layer": "layer",
    "link_layer": "layer",
    "rate": "rate",
}
# `4: ACTIVE`, `PORT_DOWN (1)`
_VALUE = re.compile(r"^(?:\d{1,3}: )?(?:PORT_)?([A-Za-z_]{2,40})")
_UP = {"up": "active"}
# What a sentence tells of a port: "`ibstat mlx5_5` says State: Down / Physical state: Polling"
_SAID = re.compile(
    rf"\bibstat(?:us)? ({_CARD})(?:(?:/| port )(\d{{1,3}}))?[`'\"]?,? .{{0,60}}?"
    r"\b[Ss]tate[: ]{1,2}(?:is )?(?:\d: )?([A-Za-z]{2,20})"
    r"(?:.{1,20}?\b[Pp]hys(?:ical)?[ _]state[: ]{1,2}(?:is )?(?:\d: )?([A-Za-z_]{3,40}))?"
)
_SAID_ON = re.compile(r"\b(?:on|of|at) (?:node |host )?(?=[\w.]*[\d-])([A-Za-z][\w.-]{1,62})")
# The card of which a command asks; `grep` may leave out the heading of what it answers.
_SHOWN = re.compile(rf"\b(?:ibstat(?:us)?|ibv_devinfo -d) ({_CARD})(?:\s|$)")
# `100 Gb/sec (1X NDR)`; `ibstat` prints the number alone.
_RATE = re.compile(r"^(\d{1,4}(?:\.\d)?)(?: Gb/sec \((\d{1,2})X\b|\s*$)")


class PortReader:
    """Follows one card at a time."""

    def __init__(self) -> None:
        self._card, self._port = "", "1"
        self._now: dict[str, str] | None = None
        self._left = 0
        self._is_infiniband = False
        self._interface = ""
        self._is_file = False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be fields of a port."""
        return self._left > 0 or self._is_file

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the port whose state it tells."""
        if self._is_file or is_mark:
            link = self._read_link(line, row)
            if link is not None:
                yield link
                return
        yield from self._read_port(line, row, is_mark=is_mark)

    def _read_port(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        text = line.text
        if is_mark and (match := _find_command(text)):
            self._card, self._port, self._now = match[1], "1", None
            self._left = _MAX_ASKED if match.re is _ASKED else _MAX_STRANGERS
        elif is_mark and (match := _RATED.match(_join_file(line))):
            port = match["port"] or match["at"] or "1"
            told = {"card": match["card"], "port": port, "state": "active", "physical": ""}
            told |= {"rate": match["rate"], "lanes": match["lanes"], "layer": ""}
            yield TabledSeen("table.port", row, line, told)
        elif self._left and (match := _SPEED.match(text)):
            self._is_infiniband = match[1] is not None
        elif self._left and (match := _WIDTH.match(text)):
            if self._is_infiniband:
                yield self._make_width(line, row, match[1])
        elif is_mark and (match := _SAID.search(text)):
            told = {"card": match[1], "port": match[2] or "1", "state": match[3].lower()}
            told |= {"physical": (match[4] or "").lower(), "layer": ""}
            host = _SAID_ON.search(text, match.start(), match.end())
            yield TabledSeen("table.port", row, replace(line, node=host[1]) if host else line, told)
        elif match := _HEAD.match(text):
            self._card = match[1] or match[2] or match[3]
            self._port, self._now, self._left = match[4] or "1", None, _MAX_STRANGERS
        elif is_mark and (match := _LINE.search(text) or _NETDEV.match(text)):
            is_line = match.re is _LINE
            state, physical = (match[3], match[4].lower()) if is_line else (match[4], "")
            state = _UP.get(state.lower(), state.lower())
            told = {"card": match[1], "port": match[2], "state": state, "layer": ""}
            told |= {} if is_line else {"netdev": match[3]}
            yield TabledSeen("table.port", row, line, told | {"physical": physical})
        elif self._left:
            yield from self._read_field(line, row)

    def _read_link(self, line: LogLine, row: int) -> TabledSeen | None:
        """Take a command or a line about one interface; return its link where the line tells it."""
        text = line.text
        is_file, self._is_file = self._is_file, False
        if is_file and (match := _IN_FILE.match(text)):
            return _tell_link(line, row, (self._card, self._port), match[1].lower())
        if match := _FILE.search(text):
            self._card, self._port, self._is_file, self._left = match[1], match[2], True, 0
        elif match := _ETHTOOL.search(text):
            self._interface = match[1] or match[2]
        elif (match := _DETECTED.match(text)) and self._interface:
            state = "active" if match[1] == "yes" else "down"
            return _tell_link(line, row, (self._interface, "0"), state)
        elif match := _CARRIER.match(text):
            return _tell_link(line, row, (match[1], "0"), "down")
        return None

    def _make_width(self, line: LogLine, row: int, lanes: str) -> TabledSeen:
        """Make the port whose width `mlxlink` tells, which is that of a link that is up."""
        told = {"card": self._card, "port": self._port, "physical": "", "layer": "infiniband"}
        told |= {"state": "active", "rate": "", "lanes": lanes}
        return TabledSeen("table.port", row, line, told)

    def _read_field(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        text = line.text
        if match := _PORT.match(text):
            self._port, self._now = match[1], None
            return
        match = _FIELD.match(text)
        if match is None:
            self._left -= bool(text.strip())
            return
        self._left = _MAX_STRANGERS
        name = _FIELDS.get(match[1].lower(), "")
        value = _VALUE.match(match[2] or "")
        if name == "state" and value is not None:
            base = {"card": self._card, "port": self._port, "physical": "", "layer": ""}
            self._now = {**base, "state": value[1].lower()}
            yield TabledSeen("table.port", row, line, self._now)
        elif name == "rate" and self._now is not None:
            # What `grep rate` prints further down is of other ports.
            if "rate" not in self._now and (rate := _RATE.match(match[2] or "")):
                self._now |= {"rate": rate[1]} | ({"lanes": rate[2]} if rate[2] else {})
        elif name and self._now is not None and value is not None:
            self._now[name] = value[1].lower()


def _find_command(text: str) -> re.Match[str] | None:
    """Find the card of which a command asks; what a sentence says of one is no command."""
    if match := _ASKED.search(text):
        return match
    return None if _SAID.search(text) else _SHOWN.search(text)


def _tell_link(line: LogLine, row: int, port: tuple[str, str], state: str) -> TabledSeen:
    told = {"card": port[0], "port": port[1], "state": state, "physical": "", "layer": "link"}
    return TabledSeen("table.port", row, line, told)


def _join_file(line: LogLine) -> str:
    """Return a line behind the path of its file, which `grep` prints before it."""
    return f"{line.owner}:{line.text}" if line.owner[:1] == "/" else line.text
