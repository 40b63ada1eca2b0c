"""Ops of all ranks side by side, a column for each rank, as ``torchfrtrace -j`` prints them.

A cell is an op with its sizes and its state; people put its number, its group and where it was
called into it or below it. Where no number is given, the rows count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

COLUMN_MARKS = (
    *(f"Rank {digit}  ".encode() for digit in range(10)),
    *(f"ank {digit} | ".encode() for digit in range(10)),
    *(f"rank{digit}  ".encode() for digit in range(10)),
)
_HEAD = re.compile(
    r"^[\s|]{0,12}(?:rank[ _]?\d{1,7}(?: log)?[\s|]{1,300}){1,1024}rank[ _]?\d{1,7}[\s|]{0,12}$",
    re.IGNORECASE,
)
_RANK = re.compile(r"rank[ _]?(\d{1,7})", re.IGNORECASE)
_RULE = re.compile(r"^[\s|+]{0,4}[-=:]{2,4000}(?:[\s|+]{1,300}[-=:]{2,4000}){1,1024}[\s|+]{0,12}$")
_DASHES = re.compile(r"[-=:]{2,}")
_GAP = re.compile(r"\s{0,8}\|\s{0,8}|\s{2,}")
_OP = re.compile(
    r"^(?:(?:nccl|gloo|hccl|xccl|ucc|mpi):)?(?P<op>[A-Za-z]\w{2,40}) ?\((?P<args>.{0,600})\)"
    r"(?:[\s,:-]{1,4}(?P<state>scheduled|started|completed))?$"
)
_ARGS = {
    "seq": re.compile(
        r"(?:(?:coll_|collective_)?seq(?:_id)?(?: \| p2p_seq_id)?|#) ?[=:]? ?(\d{1,18})\b"
    ),
    "group": re.compile(r"(?<![a-z_])(?:p|pg|pg_name|group)=([^,\s()]{1,80})"),
    "sizes": re.compile(r"(?<![a-z_])(?:s|sz|sizes|input_sizes|shapes?)=(\[[\[\]\d, ]{0,200}\])"),
    "state": re.compile(r"(?<![a-z_])state=(scheduled|started|completed)"),
    "dtype": re.compile(r"(?<![a-z_])(?:dtypes?|input_dtypes)=\[?'?(\w{1,20})"),
}
# `token_counts at loop.py:101`, `loop.py:101 token_counts`
_SITE = re.compile(
    r"^(?:(?P<function>[\w.<>]{1,120}) (?:at|in) )?(?P<file>[\w./~+-]{1,300}\.py):(?P<line>\d{1,7})"
    r"(?: (?:in )?(?P<behind>[\w.<>]{1,120}))?$"
)
_MAX_SITES = 8


class ColumnReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._last: dict[int, dict[str, str]] = {}
        self._counts: dict[int, int] = {}
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._ranks)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the ops in it."""
        text = line.text
        if is_mark and _HEAD.match(text.strip(" |")):
            self._begin([int(number) for number in _RANK.findall(text)])
        elif self._ranks and _RULE.match(text.rstrip(" |+")):
            spans = [match.span() for match in _DASHES.finditer(text)]
            self._spans = spans if len(spans) == len(self._ranks) else []
        elif self._ranks:
            yield from self._read_cells(line, row)

    def _begin(self, ranks: list[int]) -> None:
        is_sound = len(set(ranks)) == len(ranks) and max(ranks) <= MAX_RANK
        self._ranks = ranks if is_sound else []
        self._spans, self._last, self._counts, self._strangers = [], {}, {}, 0

    def _read_cells(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = self._split(line.text)
        told = 0
        for rank, cell in zip(self._ranks, cells, strict=False):
            if match := _OP.match(cell):
                told += 1
                groups = self._read_op(rank, match)
                self._last[rank] = groups
                if groups["state"]:
                    yield TabledSeen("table.entry", row, line, groups)
            elif (site := _SITE.match(cell)) and rank in self._last:
                told += 1
                _add_site(self._last[rank], site)
        self._strangers = 0 if told else self._strangers + any(map(str.isalnum, line.text))
        if self._strangers > MAX_STRANGERS:
            self._ranks = []

    def _split(self, text: str) -> list[str]:
        """Split a row below the rule of its table, or at gaps where there is none."""
        if not self._spans:
            cells = [cell.strip() for cell in _GAP.split(text.strip(" |"))]
            return cells if len(cells) == len(self._ranks) else []
        ends = [begin for begin, _ in self._spans[1:]]
        begins = [begin for begin, _ in self._spans]
        pairs = zip(begins, [*ends, len(text)], strict=True)
        return [text[begin:end].strip(" |") for begin, end in pairs]

    def _read_op(self, rank: int, match: re.Match[str]) -> dict[str, str]:
        told = {
            name: found[1] if (found := pattern.search(match["args"])) else ""
            for name, pattern in _ARGS.items()
        }
        count = self._counts[rank] = self._counts.get(rank, 0) + 1
        told["is_counted"] = "" if told["seq"] else "yes"
        told["seq"] = told["seq"] or str(count)
        told["state"] = match["state"] or told["state"]
        return {"own": str(rank), "op": match["op"], "sites": "", **told}


def _add_site(groups: dict[str, str], site: re.Match[str]) -> None:
    """Add a frame of a call, which stands below it: the innermost first."""
    known = groups["sites"].split("\n") if groups["sites"] else []
    if len(known) < _MAX_SITES:
        function = site["function"] or site["behind"] or "<unknown>"
        groups["sites"] = "\n".join([*known, f"{site['file']}\t{site['line']}\t{function}"])
