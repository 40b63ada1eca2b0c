"""How much all ranks had to do in a step and how long that took, as two lists in one line.

`step 12 tokens 4096 8011 3977 | ms 411 820 402`. Only texts of the size that people paste are
looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MOST_LINES = 256
_MAX_WIDTH = 4000
_LEAST, _MOST = 3, 256
# Lines of one table stand so near to each other.
_MOST_APART = 8
_HINT = re.compile(rb"(?:ms|\bs|_s|secs?|seconds)[)\] :=\[]{1,5}\d[\d.]*[ ,]{1,3}\d")
_LIST = re.compile(
    r"(?<![\w.])(?P<name>(?:[A-Za-z_+/]{1,24} ){0,2}[A-Za-z_+/]{1,24}"
    r"(?: ?[(\[][A-Za-z]{1,8}[)\]])?) ?[:=]? ?[\[(]?\s?"
    r"(?P<list>\d{1,12}(?:\.\d{1,6})?(?:[ ,]{1,3}\d{1,12}(?:\.\d{1,6})?){2,255})\b(?!\.\d)"
)
_NUMBER = re.compile(r"[\d.]+")
_WORK = re.compile(
    r"(?:n_|num_)?(?:tokens?|toks?|samples?|seqs?|seq_?lens?|frames?|nodes?|edges?|atoms?|points?"
    r"|images?|pixels?|patches)(?: ?/ ?(?:rank|gpu)| (?:per|of each|by) (?:rank|gpu))?",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:(?:compute|fwd|forward|bwd|backward|step|iter|total|times?|took)[ _+/]{0,3}){0,4}[(\[]?"
    r"(?P<unit>ms|s|secs?|seconds)[)\]]?",
    re.IGNORECASE,
)
# Lists of what one rank does one after the other.
_OTHERS = re.compile(r"(?i)micro|\bmb\b|stage|layer|expert|bucket|\bper step\b|hist")
_MS = 1000.0


def find_work_lists(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find lines that list the work of ranks and its time, one figure of each rank in their order.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found, count, begin, last = 0, 0, 0, -_MOST_APART
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        line = whole[:_MAX_WIDTH]
        pairs = _read_lists(line)
        if not pairs:
            continue
        if at - last > _MOST_APART or len(pairs) != count:
            begin, count = row + at, len(pairs)
        last, found = at, found + 1
        if found > _MOST_LINES:
            return
        for own, (work, ms) in enumerate(pairs):
            told = {"table": f"list {begin}", "own": str(own), "work": work, "took": ms}
            yield TabledSeen("table.work", row + at, LogLine(line.strip()), told | {"phase": ""})


def _read_lists(line: str) -> list[tuple[str, str]]:
    """Return the work and the ms of each rank; nothing where a line is of another kind."""
    work: list[str] = []
    times: list[str] = []
    if _OTHERS.search(line):
        return []
    for match in _LIST.finditer(line):
        values, name = _NUMBER.findall(match["list"]), match["name"]
        if _WORK.fullmatch(name) or _WORK.fullmatch(name.rpartition(" ")[2]):
            work = [value for value in values if value.isdecimal()]
        elif unit := _TIME.fullmatch(name):
            scale = 1.0 if unit["unit"].lower() == "ms" else _MS
            times = [str(float(value) * scale) for value in values]
    is_pair = len(work) == len(times) and _LEAST <= len(work) <= _MOST
    return list(zip(work, times, strict=True)) if is_pair else []
