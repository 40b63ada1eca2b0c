"""Rows of ranks that name each of their values: `r0  data 3.3  fwd 135.6  bwd 254.8  opt 20.8`.

The names are those of columns, and so the first row is the head of its table as well. All rows of
a table have the same names.
"""

from __future__ import annotations

import re
from functools import partial

from whystuck.parse.logs.blocks.rank_tables.rank_heads import Column, RankTable
from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import read_name

# The first row of a table is of rank 0; lines with prefixes are read as the ranks print them.
NAMED_MARKS = tuple(
    (label + between + word).encode()
    for label in ("r0", "R0", "ank0", "ank 0", "ank=0", "ank_0", "gpu0", "GPU0", "GPU 0")
    for between in (" ", "  ", ": ", ":  ", " | ", "] ")
    for word in ("data", "fwd", "forward", "load", "comp", "input")
)
# When it was, and which step, may stand before it.
_LABEL = re.compile(
    r"\s{0,12}(?:[|*-]\s{0,4})?(?:\[?\d\d:\d\d:\d\d[.,\d]{0,8}\]?\s{1,4})?"
    r"(?:\[?(?:global_)?(?:step|iter|it)[ =:#]{0,2}\d{1,9}\]?[:,|]?\s{1,4}(?:\|\s{0,4})?)?"
    r"[\[(]?(?P<label>[A-Za-z_]{1,12}[ _=#]?\d{1,7})[\])]?\s?[:|]?[\s,]{1,8}"
)
_PAIR = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z_/()\[\]-]{0,30})(?:\s?[=:]\s{0,8}|\s{1,12})"
    r"(?P<value>\d{1,12}(?:\.\d{1,6})?(?:\s?(?:ms|us|\u00b5s|s)(?![\w/]))?)(?:[\s,;|]{1,12}|$)"
)
_LEAST_NAMES = 3
_MOST_NAMES = 32
_LONGEST = 600


def read_named_head(text: str) -> RankTable | None:
    """Return the table of which a line is the first row; None where it is none."""
    label, pairs = _read_row(text)
    names = tuple(name for name, _ in pairs)
    owner = cells.read_owner(label) if len(names) >= _LEAST_NAMES else None
    if owner is None or len(set(names)) < len(names):
        return None
    told = [read_name(name) for name in names]
    if sum(name.kind == "time" for name in told) < _LEAST_NAMES - 1:
        return None
    columns = [Column((read_name(""),)), *(Column((name,)) for name in told)]
    table = RankTable(partial(_split_named, names), columns, 0, owner.is_device, is_named=True)
    table.scales = [0.0] * len(columns)
    return table


def _split_named(names: tuple[str, ...], text: str) -> list[str]:
    """Return the rank and the values of a row, nothing where it has other names."""
    label, pairs = _read_row(text)
    is_same = names == tuple(name for name, _ in pairs)
    return [label, *(value for _, value in pairs)] if is_same else []


def _read_row(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return whose a row is, and its names with their values; nothing of a line of another form."""
    head = _LABEL.match(text) if len(text) <= _LONGEST else None
    pairs: list[tuple[str, str]] = []
    at = head.end() if head else len(text)
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None or len(pairs) >= _MOST_NAMES:
            return "", []
        pairs.append((match["name"], match["value"]))
        at = match.end()
    return (head["label"] if head else ""), pairs
