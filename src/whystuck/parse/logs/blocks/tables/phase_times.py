"""How long one rank says that a phase took which is over: `[rank3] eval done: 4021 items, 38.9s`.

Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import parse_line

_MAX_WIDTH, _MOST = 400, 256
_HINT = re.compile(
    rb"(?i)\b(?:done|finish|complete|took|over|ended|saved|loaded|built|wrote)[^\n]{0,200}?"
    rb"\d ?(?:s|m)"
)
# What ranks do by themselves, while others wait: steps and epochs are made of collectives.
_PHASE = re.compile(
    r"\b(?P<what>eval\w{0,7}|valid\w{0,7}|test(?:ing)?|inference|sampl(?:ing|es)|generat\w{1,4}"
    r"|sav(?:e|ing)|checkpoint\w{0,3}|ckpt|load(?:ing)?|download\w{0,3}|upload\w{0,3}"
    r"|prepar\w{1,6}|preprocess\w{0,3}|tokeni[sz]\w{1,5}|(?:index|dataset|cache|vocab)\w{0,3}"
    r"|compil\w{1,7}|export\w{0,3}|metrics?|mAP|bleu|decod(?:e|ing)|plot\w{0,4}|logging)\b",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"\b(?:done|finished|completed?|took|over|ended|saved|loaded|built|wrote)\b", re.IGNORECASE
)
_TIME = re.compile(
    r"(?<![\w.])(?P<value>\d{1,6}(?:\.\d{1,6})?) ?"
    r"(?P<unit>s|secs?|seconds|min|mins|minutes|ms)\b(?!/)"
)
_SCALE = {"ms": 0.001, "min": 60.0, "mins": 60.0, "minutes": 60.0}


def find_phase_times(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find lines in which a rank says how long a phase of its own took.

    Args:
        data: The text.
        row: The number of its first line.
    """
    found = 0
    for at, raw in enumerate(data.split(b"\n")) if _HINT.search(data) else ():
        if found >= _MOST or not _HINT.search(raw):
            continue
        line = parse_line(raw[:_MAX_WIDTH])
        over = _OVER.search(line.text)
        phase = _PHASE.search(line.text)
        times = [*_TIME.finditer(line.text, over.end())] if over else []
        if line.writer < 0 or phase is None or len(times) != 1:
            continue
        found += 1
        seconds = float(times[0]["value"]) * _SCALE.get(times[0]["unit"], 1.0)
        groups = {"own": str(line.writer), "what": phase["what"].lower(), "s": f"{seconds:g}"}
        yield TabledSeen("table.phase_time", row + at, line, groups)
