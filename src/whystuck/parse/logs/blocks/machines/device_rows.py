"""What nvidia-smi prints of devices: a line of each below the names of columns, or reasons.

The reasons for its clocks stand below the bus id of a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.machines.host_rows import HostRows
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

DEVICE_MARKS = (
    b"temperature.gpu",
    b"memory.used",
    b"clocks.current",
    b"clocks.sm",
    b"clocks.gr",
    b"pci.bus_id",
    b"gpu_bus_id",
    b"clocks_event_reasons",
    b"clocks_throttle_reasons",
    b"pcie.link.width",
    b"pcie.link.gen",
    b"# gpu ",
    b"GPU 0000",
    b"nvidia-smi",
    b"HW Slowdown",
    b"HW Thermal Slowdown",
    b"HW Power Brake Slowdown",
    b"SW Thermal Slowdown",
    *(
        word + b" " + letter + end
        for word in (b"rank", b"Rank", b"gpu", b"GPU")
        for letter in (b"i", b"r", b"k", b"n", b"x", b"N")
        for end in (b" ", b"=")
    ),
    b"1:1 ",
    b"one-to-one",
    b"rank == gpu",
    b"rank == GPU",
    b"rank = gpu",
    b"rank = GPU",
    b"rank is the gpu",
    b"rank is the GPU",
    b"rank equals",
    b"GPU index",
    b"gpu index",
    b"GPU id",
    b"gpu id",
    *(b"index GPU", b"index du GPU", b"index de GPU", b"ndice GPU", b"ndice de ", b"GPU-Index"),
    *(b"GPU-Nummer", b"GPU-ID", b"rang = ", b"rango = ", b"Rang = ", b"rang=", b"rango="),
    *(
        word.encode()
        for word in (
            "\u5361\u53f7",
            "\u5361\u7f16\u53f7",
            "GPU\u7f16\u53f7",
            "GPU \u7f16\u53f7",
            "GPU\u756a\u53f7",
        )
    ),
    b"GPU order",
    b"gpu order",
    b"|   0000",
    b"| 0000",
)
BUS = re.compile(r"^GPU (0000[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_REASON = re.compile(r"^\s*([HS]W (?:Thermal |Power Brake )?Slowdown)\s*: Active\s*$")
_SAME = re.compile(
    # `rank i uses GPU i`: one letter for both
    r"\b(?P<mine>local[_ ])?rank[ _](?P<letter>[a-z])\b ?"
    r"(?:=|==|is|<-{1,2}>|-{1,2}>|uses|has|gets|owns|drives|on|(?:runs|sits|lives) on|is on)"
    r" ?(?:gpu|cuda|device)[ :_]?(?P=letter)\b"
    r"|\b(?:gpu|cuda|device)[ :_](?P<other>[a-z])\b ?(?:=|==|is|<-{1,2}>|-{1,2}>|(?:is |runs )?for"
    r"|belongs to|runs|has|hosts) ?(?P<its>local[_ ])?rank[ _](?P=other)\b"
    r"|\b(?P<each_one>local[_ ])?ranks? (?:and (?:gpus?|devices?) )?(?:are |is )?"
    r"(?:mapped|map|maps|pinned|bound)? ?(?:1:1|one-to-one) ?(?:to|with|on)? ?(?:gpu|cuda|device)"
    r"|\b(?P<local>local[_ ])?rank ?(?:=|==|is|equals)(?: the)? ?(?:gpu|cuda|device)[ _]?"
    r"(?:index|id|idx|number)\b"
    r"|\b(?:gpu|cuda|device)[ _]?(?:index|id|idx|number|i|N) ?(?:=|==|is|equals|<->|->)(?: the)? ?"
    r"(?P<own>local[_ ])?rank\b(?! ?\d)"
    r"|\b(?P<each>local )?ranks? (?:are |is )?in (?:the )?(?:gpu|device) order\b"
    r"|\b(?P<order>local )?rank order (?:=|==|is) (?:the )?(?:gpu|device) order\b",
    re.IGNORECASE,
)
# `rang = index GPU`, `rango = \u00edndice de GPU`, `Rang = GPU-Index`, `rank = \u5361\u53f7`
_SAID_ABROAD = re.compile(
    r"\b(?:rango?|rank)s? ?(?:={1,2}|:|est|es|ist)(?: ?(?:l'|el |la |der |die ))? ?"
    r"(?:[i\u00ed]nd(?:ex|ice)"
    r"|num[e\u00e9]ro|n[u\u00fa]mero|nummer)(?: (?:du|de la|des?|del|der))? ?"
    r"(?:gpu|cuda|carte|tarjeta|device)\b"
    r"|\b(?:rang|rank) ?(?:={1,2}|ist)(?: ?der)? ?gpu-(?:index|nummer|id)\b"
    r"|(?:\brank|\u8fdb\u7a0b|\u30e9\u30f3\u30af) ?"
    r"(?:={1,2}|\u5c31\u662f|\u7b49\u4e8e|\u5373|\u306f) ?"
    r"(?:gpu ?|\u663e\u5361|\u5361)(?:\u7f16\u53f7|\u5e8f\u53f7|\u53f7|\u756a\u53f7)",
    re.IGNORECASE,
)
_LOCAL = ("mine", "its", "each_one", "local", "own", "each", "order")
# What columns are called, by release and by option.
_COLUMNS = {
    "index": ("index",),
    "clock": ("clocks.current.sm", "clocks.sm", "clocks.gr", "clocks.current.graphics", "pclk"),
    "temperature": ("temperature.gpu", "gtemp"),
    "busy": ("utilization.gpu", "sm"),
    "memory": ("memory.used",),
    "reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "bus": ("pci.bus_id", "gpu_bus_id"),
    "width": ("pcie.link.width.current",),
    "most": ("pcie.link.width.max",),
    "speed": ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
    "most_speed": ("pcie.link.gen.max",),
}
_TELLING = {"bus", "clock", "memory", "reasons", "speed", "temperature", "width"}
_FLAGS = re.compile(r"clocks_(?:event|throttle)_reasons\.((?:hw|sw_thermal)\w*)")
# The command that asks for columns, whose names may be left out of what it prints.
_ASKED = re.compile(r"--query-gpu[= ]['\"]?([\w.,]{3,600})")
_UNIT = re.compile(r" ?\[[^\]]{1,8}\]$")
_VALUE = re.compile(
    r"^\s*(0x[0-9a-fA-F]{1,16}|\d{1,12}(?:\.\d{1,6})?|[0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2}\.\d)"
    r"(?:\s?[A-Za-z%]{1,4})?\s*$"
)
# A row of what nvidia-smi prints when it is asked for nothing.
_LISTED = re.compile(
    r"^\|\s{1,4}(\d{1,3})\s{2,4}\S[^|]{0,60}\|\s{1,4}([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)\s"
)


class DeviceReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._split = ""
        self._bus = ""
        self._rows = HostRows()
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._columns)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the row that it is."""
        text = line.text
        if is_mark and "nvidia-smi" in text:
            self._rows.begin(text)
            self._bus = ""
        if is_mark and self._begins(text):
            return
        if self._columns:
            yield from self._read_device(line, row)
        if not is_mark:
            return
        if match := BUS.match(text):
            self._bus = match[1]
        elif match := _REASON.match(text):
            told = {"bus": self._bus, "host": line.node or self._rows.host, "reason": match[1]}
            told["index"] = self._rows.asked
            yield TabledSeen("table.slowdown", row, line, told)
        elif match := _LISTED.match(text):
            yield TabledSeen("table.device", row, line, {"index": match[1], "bus": match[2]})
        elif match := _SAME.search(text):
            is_local = any(match[name] for name in _LOCAL)
            groups = {"of": "host"} if is_local else {}
            yield TabledSeen("table.rank_is_device", row, line, groups)
        elif _SAID_ABROAD.search(text):
            yield TabledSeen("table.rank_is_device", row, line, {})

    def _begins(self, text: str) -> bool:
        asked = _ASKED.search(text)
        if asked:
            columns, split = asked[1].split(","), ","
        elif text.startswith("# gpu "):
            columns, split = ["index", *text.split()[2:]], ""
        else:
            columns, split = [_UNIT.sub("", part.strip()) for part in text.split(",")], ","
        known = {name for name, words in _COLUMNS.items() if set(words) & set(columns)}
        is_head = "index" in known and bool(known & _TELLING)
        is_head = is_head or ("index" in columns and any(map(_FLAGS.match, columns)))
        # Rows that are sorted are in no order of devices.
        is_head = is_head or bool(asked and known & _TELLING and "sort" not in text)
        if is_head:
            self._columns, self._split, self._strangers = columns, split, 0
        return is_head

    def _read_device(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        text = line.text if line.text.startswith("#") else self._rows.cut(line.text)
        cells = text.split(self._split) if self._split else text.split()
        if len(cells) != len(self._columns) or text.startswith("#"):
            if not text.startswith("#") and not self._rows.read_head(text):
                self._end_soon(text)
            return
        told = dict(zip(self._columns, cells, strict=True))
        groups: dict[str, str] = {}
        for name, words in _COLUMNS.items():
            value = next((_VALUE.match(told[word]) for word in words if word in told), None)
            if value is not None:
                groups[name] = value[1]
        flags = [
            match[1]
            for name, cell in told.items()
            if cell.strip() == "Active" and (match := _FLAGS.match(name))
        ]
        if groups and "index" not in self._columns:
            groups["index"] = self._rows.place()
        if "index" in groups:
            self._strangers = 0
            if flags:
                groups["flags"] = ",".join(flags)
            if host := line.node or self._rows.host:
                groups["host"] = host
            yield TabledSeen("table.device", row, line, groups)

    def _end_soon(self, text: str) -> None:
        self._strangers += any(char.isalnum() for char in text)
        if self._strangers > MAX_STRANGERS:
            self._columns, self._split = [], ""
