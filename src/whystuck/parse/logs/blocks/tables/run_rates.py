"""The pace of two runs of one job side by side, each line below the name of its run.

`old: iteration 200/ 900 | elapsed time per iteration (ms): 812.4`; and what differs between
them, as `diff` prints it. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.step_rates import find_step_rates
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MOST, _MAX_WIDTH = 256, 400
_TWO, _HEAD = 2, 100
# A version, a word of time or of worth, a numbered run; ranks and hosts are no runs.
_LABEL = re.compile(
    r"^\s{0,8}[\[(*-]{0,2} ?"
    r"(?P<run>(?:[A-Za-z][\w-]{0,20}[ :=/-])?v?\d{1,4}(?:\.\d{1,4}){1,3}(?:[-+.\w]{0,24})?"
    r"|(?:the )?(?:old|new|before|after|baseline|base|good|bad|slow|fast|main|master|prev(?:ious)?"
    r"|current|patched|with|without|yesterday|today|last week)(?:[ _-][\w.-]{1,24})?"
    r"|(?:run|job|exp|image|container|branch|commit|tag)[ _#:=-]{1,2}[\w.-]{1,40})"
    r"[\])]?\s{0,4}(?:[:|]|->|=>)\s",
    re.IGNORECASE,
)
_CHANGED = re.compile(r"^(?P<side>[-+<>]) ?(?P<what>(?![-+<>=])\S.{2,200}?)\s{0,8}$")


def find_run_rates(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the pace of steps of which a name of a run stands in front, and lines of a diff.

    Args:
        data: The text.
        row: The number of its first line.
    """
    lines = data.decode("utf-8", errors="replace").split("\n")
    if len({match["run"] for line in lines if (match := _LABEL.match(line[:_HEAD]))}) < _TWO:
        return
    runs = set[str]()
    for seen in find_step_rates(data, row):
        label = _LABEL.match(seen.line.text)
        if label is None or len(runs) >= _MOST:
            continue
        run = label["run"].strip()
        runs.add(run)
        yield TabledSeen("table.run_rate", seen.row, seen.line, seen.groups | {"run": run})
    if len(runs) > 1:
        yield from _list_changes(lines, row)


def _list_changes(lines: list[str], row: int) -> Iterator[TabledSeen]:
    """Yield the lines of a diff, where both sides have some."""
    found: list[TabledSeen] = []
    for at, line in enumerate(lines):
        text = line[:_MAX_WIDTH]
        if (match := _CHANGED.match(text)) and len(found) < _MOST:
            side = "out" if match["side"] in "-<" else "in"
            groups = {"side": side, "what": match["what"]}
            found.append(TabledSeen("note.changed", row + at, LogLine(text.strip()), groups))
    if {one.groups["side"] for one in found} == {"out", "in"}:
        yield from found
