"""Heads that say once what the cells of all ranks hold: `step   rank: tokens/ms`.

The rows have a cell for each rank, in the order of ranks, without their names. How many there are,
the first row tells.
"""

from __future__ import annotations

import re

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.rank_tables.rank_heads import Column, RankTable
from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import Name, read_name

SHARED_MARKS = (
    *(
        begin + word
        for begin in (b"rank: ", b"ranks: ", b"rank (", b"rank:  ", b"ranks (")
        for word in (b"tok", b"n_tok", b"ntok", b"num_", b"samp", b"seq", b"frames", b"ms/", b"img")
    ),
    *(b"ms" + end for end in (b" per rank", b" by rank", b") per rank", b") by rank")),
    *(b"ms" + end for end in (b" per-rank", b" for rank", b" of rank", b" of each rank")),
    *(begin + b" rank" for begin in (b"ms for each", b"ms) for each", b"sec per", b"seconds per")),
    *(begin + b" rank" for begin in (b"(s) per", b"/s per", b"/ s per")),
    *(b"ranks 0-", b"ranks 0..", b"ranks 0 .. ", b"ranks 0 - "),
)
_STEP = r"(?:\|?\s{0,4}(?:global[ _]?)?(?:step|iter(?:ation)?|it|batch)s?[\s|,:;]{1,20})?"
_RANGE = r"(?:[ (]{0,2}(?P<FIRST>\d{1,6}) ?(?:-|\u2013|\.{2,3}|to) ?(?P<LAST>\d{1,6})\)?)?"
_WHAT = r"[A-Za-z_+()\[\]]{1,24}(?: [A-Za-z_+()\[\]]{1,24}){0,3}"
_NAMES = rf"[(\[]?(?P<NAMES>{_WHAT}(?: ?[/@] ?{_WHAT}){{1,3}})[)\]]?"


def _fill(pattern: str, number: int) -> str:
    for name in ("FIRST", "LAST", "NAMES"):
        pattern = pattern.replace(name, f"{name.lower()}{number}")
    return pattern


_HEADS = re.compile(
    rf"\s{{0,20}}{_STEP}(?:"
    # `rank: tokens/ms`, `per rank (tokens / ms)`, `ranks 0-7: tok/ms`
    + _fill(rf"(?:(?:per|by|each|all)[ -])?ranks?{_RANGE} ?[:=(] ?{_NAMES}", 1)
    # `tokens/ms per rank`, `tok / ms of ranks 0..7`
    + "|"
    + _fill(rf"{_NAMES},? (?:per|by|for|of)[ -](?:each |all |the )?ranks?{_RANGE}", 2)
    + r")[\s|:)]{0,8}",
    re.IGNORECASE,
)
_LONGEST = 160
_LEAST_RANKS = 3


def read_shared_head(text: str) -> RankTable | None:
    """Return the table whose head a line is, where it says once how much all did in which time."""
    match = _HEADS.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    told = match["names1"] or match["names2"]
    names = tuple(_read_name(part) for part in re.split(r"[/@]", told))
    # Two numbers of a cell are told apart by what they are.
    if {"work", "time"} - {name.kind for name in names}:
        return None
    first, last = match["first1"] or match["first2"], match["last1"] or match["last2"]
    ranks = range(int(first), int(last) + 1) if first else range(0)
    return RankTable(cells.split_pairs, [], -1, is_device=False, shared=names, ranks=ranks)


def _read_name(text: str) -> Name:
    return read_name(text.strip(" ()[]"))


def take_shared_row(text: str, table: RankTable) -> None:
    """Take the first row of such a table, which tells how many ranks it has."""
    if table.columns or not table.shared:
        return
    told = cells.split_cells(text, table.way)
    pairs = [cell.count("/") + 1 == len(table.shared) for cell in told]
    first = 0 if pairs and pairs[0] else 1
    count = len(told) - first
    values = [part for cell in told[first:] for part in cell.split("/")]
    is_row = all(pairs[first:]) and all(cells.read_value(part) for part in values)
    ranks = table.ranks or range(count)
    if is_row and _LEAST_RANKS <= count <= MAX_RANK and len(ranks) == count:
        table.columns = [Column(()), *(Column(table.shared, rank) for rank in ranks)]
        table.scales = [0.0] * len(table.columns)
