"""How many batches ranks say that they have or have had, a line or more for each rank.

Those of a pipeline say how many micro-batches each step has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

BATCH_MARKS = (
    b" batches", b"batches=", b"batches:", b"len(loader)", b"len(train", b"len(dl",
    b"loader length", b"microbatches", b"micro_batches", b"micro-batches",
)  # fmt: skip
_COUNT = re.compile(
    r"(?<![\w.])(?P<count>\d{1,9}) (?:mini-?|micro-?|train(?:ing)? |local )?batches\b"
    r"|\b(?:n_|num_?|number of )?(?:micro[-_ ]?)?batches(?: seen| done)?\s?[=:]\s?"
    r"(?P<told>\d{1,9})\b"
    r"|\bmicro-?batches to constant (?P<constant>\d{1,9})\b"
    r"|\blen\((?:self\.)?(?P<loader>\w{0,20}(?:loader|dl)\w{0,10})\)\s?(?:=|:|is|->)\s?"
    r"(?P<length>\d{1,9})\b"
    r"|\b(?:data)?loader length\s?[=:]\s?(?P<long>\d{1,9})\b"
)
_NUMBERS = ("count", "told", "constant", "length", "long")
_RANK = re.compile(r"(?<![a-z_])(?<!pp )rank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch[ _=:#]{0,2}(\d{1,6})\b", re.IGNORECASE)
_STAGE = re.compile(r"\b(?:stage|pp[ _]?rank)[ _=:#]{0,2}(\d{1,6})\b", re.IGNORECASE)
# Of all ranks, or of what is still to come, it is no count of one.
_NOT_OWN = re.compile(
    r"\b(?:total|all ranks|remaining|left|per epoch|every|global)\b", re.IGNORECASE
)


class BatchReader:
    """Reads single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the count of the rank that it names, or that wrote it."""
        match = _COUNT.search(line.text) if is_mark else None
        if match is None or _NOT_OWN.search(line.text):
            return
        named = _RANK.findall(line.text)
        own = named[0] if len(named) == 1 and int(named[0]) <= MAX_RANK else ""
        epoch = _EPOCH.search(line.text)
        stage = _STAGE.search(line.text)
        groups = {
            "own": own,
            "count": next(match[name] for name in _NUMBERS if match[name]),
            "epoch": epoch[1] if epoch else "",
            "loader": match["loader"] or "",
            "kind": "micro" if "micro" in match[0].lower() else "",
            "stage": stage[1] if stage else "",
        }
        yield TabledSeen("table.batches", row, line, groups)
