"""How many processes and threads a user may have, as programs, shells and tools print it.

`RLIMIT_NPROC 4096 current`, `ulimit -u` and the number below it, `max user processes (-u) 4096`.
Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import parse_line

_MAX_WIDTH, _MOST = 400, 64
_HINT = re.compile(
    rb"RLIMIT_NPROC \d|max user processes|Max processes |max number of processes|pids\.max"
    rb"|ulimit -u"
)
_NAMED = re.compile(
    r"(?P<own>RLIMIT_NPROC) (?P<soft>\d{1,9}) current"
    r"|max user processes\s+(?:\([^()]{1,30}\) )?(?P<shell>\d{1,9})\s*$"
    r"|^Max processes\s+(?P<kernel>\d{1,9})\s"
    r"|\bNPROC\s+max number of processes\s+(?P<tool>\d{1,9})\s"
    r"|\bpids\.max\s?[:=]\s?(?P<group>\d{1,9})\s*$"
    r"|\bulimit -u\s?[:=]\s?(?P<said>\d{1,9})\s*$"
)
# A command alone that prints the number in the line below.
_ASKED = re.compile(r"[$#%>] (?:ulimit -u|cat /sys/fs/cgroup/\S{0,200}pids\.max)\s*$")
_ALONE = re.compile(r"^\s{0,8}(\d{1,9})\s*$")


def find_process_limits(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find limits of processes and threads.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found, is_asked = 0, False
    for at, raw in enumerate(data.split(b"\n")):
        line = parse_line(raw[:_MAX_WIDTH])
        match = _ALONE.match(line.text) if is_asked else _NAMED.search(line.text)
        is_asked = _ASKED.search(line.text) is not None
        if match is None or found >= _MOST:
            continue
        found += 1
        number = next(one for one in reversed(match.groups()) if one and one.isdecimal())
        is_own = "1" if match.re is _NAMED and match["own"] else ""
        groups = {"count": number, "is_own": is_own}
        yield TabledSeen("table.process_limit", row + at, line, groups)
