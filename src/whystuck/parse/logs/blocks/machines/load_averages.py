"""How many processes ran or wanted to run, by the load that `uptime`, `top` or the kernel print.

Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST = 300, 64
_HINT = re.compile(rb"load averages?: \d|\d\.\d\d \d{1,5}\.\d\d \d{1,5}/\d")
_LOAD = re.compile(
    r"\bload averages?: (?P<said>\d{1,5}[.,]\d\d),? "
    r"|^\s{0,8}(?P<kernel>\d{1,5}\.\d\d) \d{1,5}\.\d\d \d{1,5}\.\d\d \d{1,5}/\d{1,6} \d{1,9}\s*$"
)


def find_load_averages(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find loads of a host over the last minute.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found = 0
    for at, raw in enumerate(data.split(b"\n")):
        text = raw[:_MAX_WIDTH].decode("utf-8", errors="replace")
        match = _LOAD.search(text) if found < _MOST else None
        if match is not None:
            found += 1
            load = (match["said"] or match["kernel"]).replace(",", ".")
            yield TabledSeen("table.load", row + at, LogLine(text.strip()), {"load": load})
