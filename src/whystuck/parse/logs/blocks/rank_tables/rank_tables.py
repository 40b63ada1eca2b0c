"""Tables of what ranks tell, as people draw them: a row for each rank, or a column for each.

Cells may be times of phases, how much a rank had to do and how long that took, and sums over what
all ranks should have alike. What they are is told by the names of columns and rows, and by the
lines above the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from whystuck.parse.logs.blocks.rank_tables.rank_heads import (
    Column,
    RankTable,
    list_rows,
    pair_names,
    read_rank_head,
    read_sum,
)
from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import (
    Name,
    find_said_phase,
    find_said_scale,
    find_scale,
    find_step,
    is_hash,
    is_own,
    is_sum,
    read_name,
    tells_many_hosts,
    tells_no_times,
    tells_sums,
)
from whystuck.parse.logs.blocks.tables.named_cells import NAMED_MARKS, read_named_head
from whystuck.parse.logs.blocks.tables.shared_heads import (
    SHARED_MARKS,
    read_shared_head,
    take_shared_row,
)
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_UNITS = (b"_ms", b"(ms", b" (ms", b"[ms", b" [ms", b"_s ", b"(s)", b" (s)")
_WORDS = (b"fwd", b"forward", b"compute")
_BAR = b"\xe2\x94\x82"
_HEADS = (b"rank", b"Rank", b"RANK", b"rank_id", b"Rank ID", b"rank id")
# The second of several columns of ranks: of the first one, there are more lines.
_SECOND = (
    *(b"r1", b"R1", b"rank1", b"rank 1", b"rank_1", b"Rank1", b"Rank 1", b"RANK1"),
    *(b"gpu1", b"gpu 1", b"GPU1", b"GPU 1"),
)
_ABROAD = tuple(
    word.encode() for one in cells.ABROAD for word in dict.fromkeys((one, one.capitalize()))
)
RANK_MARKS = (
    *SHARED_MARKS,
    *NAMED_MARKS,
    # The head in other languages, and the second of several.
    *(word + end for word in _ABROAD for end in (b"  ", b" |", b",", b"\t")),
    *(word + b" 1" + end for word in _ABROAD for end in (b"  ", b" |")),
    # Phases alone, where rows begin with the name of a rank.
    *(word + end for word in (b"fwd", b"forward", b"bwd", b"backward") for end in (b"  ", b" |")),
    *(word + end for word in (b"compute", b"data_wait") for end in (b"  ", b" |")),
    # The head of a column of ranks.
    *(
        word + end
        for word in _HEADS
        for end in (b"  ", b" |", b"|", b"\t", b",", b";", b" " + _BAR)
    ),
    *(begin + word for word in _HEADS[:3] for begin in (b"| ", b",", _BAR + b" ")),
    *(b"rank " + name for name in (b"fwd", b"forward", b"data", b"host", b"step", b"node")),
    *(b"| gpu", b"| GPU", b"gpu  ", b"GPU  ", b"gpu |", b"GPU |", b"gpu,host", b"gpu\t"),
    *(name + end for name in _SECOND for end in (b"  ", b" |", b" " + _BAR)),
    *(begin + name for name in _SECOND for begin in (b"| ", _BAR + b" ")),
    *(b"," + name + b"," for name in _SECOND),
    *(b"\t" + name + end for name in _SECOND for end in (b"\t", b":", b" ")),
    *(b"|" + name + end for name in _SECOND for end in (b"|", b" ")),
    *(begin + name for name in (b"r1_", b"R1_", b"rank1_") for begin in (b" ", b",", b"\t", b"|")),
    # Those of the second host.
    *(name + end for name in (b"r9", b"rank9", b"rank 9") for end in (b"  ", b" |")),
    *(b"| r9", b"| rank9", b"| rank 9", b",r9,", b",rank9,"),
    b"r0 r1 ",
    # Names of columns.
    *(word + unit for word in _WORDS for unit in _UNITS),
    *(b"data_wait", b"allreduce_wait", b"comm_wait", b"fwd_time", b"bwd_time"),
)
# So many lines above a table may say what is in it.
MOST_ABOVE = 6
_LEAST_RANKS = 3
# What somebody says of the table behind its head: `rank  tokens  busy_s   (actor, step 41)`.
_REMARK = re.compile(
    r"(?<=\S)(?:\s{2,12}|\t)[(\[#](?=[^()\[\]]{1,60}[ ,=])[^()\[\]]{3,100}[)\]]?\s{0,8}$"
)


@dataclass(frozen=True)
class _Said:
    """What the lines above a table say of it.

    Attributes:
        scale: How many ms the unit of its times is, 0 where nobody says so.
        phase: Of what they are.
        has_sums: Whether it has sums over what all ranks have alike.
        has_hosts: Whether the job has several hosts.
        has_times: Whether it may have times of usual steps.
    """

    scale: float = 0.0
    phase: str = ""
    has_sums: bool = False
    has_hosts: bool = False
    has_times: bool = True


def _read_above(above: Sequence[str]) -> _Said:
    return _Said(
        scale=find_said_scale(above),
        phase=find_said_phase(above),
        has_sums=tells_sums(above),
        has_hosts=tells_many_hosts(above),
        has_times=not tells_no_times(above),
    )


Above = Callable[[], Sequence[str]]


class RankTableReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._tables: list[RankTable] = []
        self._begin = self._strangers = 0
        self._said = _Said()

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._tables)

    def read_row(
        self, line: LogLine, raw: str, row: int, above: Above, *, is_mark: bool
    ) -> Iterator[TabledSeen]:
        """Take a line; yield what its cells tell.

        Args:
            line: The line.
            raw: The same with what stands before it: the first cells look like a prefix.
            row: Its number.
            above: Returns the lines above it, the nearest first.
            is_mark: Whether it may be the head of a table.
        """
        texts = (line.text, raw) if raw != line.text else (raw,)
        is_named = is_mark and self._begins_named(texts, row, above)
        if is_mark and not is_named and any(self._begins(text, row, above) for text in texts):
            return
        if not self._tables or cells.is_drawn(raw):
            return
        if is_mark and self._takes_units(raw):
            return
        for table in self._tables:
            for text in texts:
                take_shared_row(text, table)
                for one in list_rows(text, table):
                    if (found := self._read_cells(line, row, table, one)) is not None:
                        self._tables, self._strangers = [table], 0
                        yield from found
                        return
        if any(self._takes_units(text) for text in texts):
            return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._tables = []

    def _begins(self, text: str, row: int, above: Above) -> bool:
        text = _REMARK.sub("", text)
        tables = [one for way in cells.WAYS if (one := read_rank_head(text, way)) is not None]
        if shared := read_shared_head(text):
            tables = [shared]
        if not tables:
            return False
        said = _read_above(above())
        tables = [one for one in tables if one.rank_at < 0 or _is_telling(one, said)]
        if tables:
            self._tables, self._begin, self._strangers = tables, row, 0
            # A hash beside the norm of the weights is one of the weights.
            has_norms = any(_has_norms(table) for table in tables)
            self._said = replace(said, has_sums=said.has_sums or has_norms)
        return bool(tables)

    def _begins_named(self, texts: Sequence[str], row: int, above: Above) -> bool:
        """Take a row that names its values; the first one begins its table."""
        named = [(text, table) for text in texts if (table := read_named_head(text))]
        if not named:
            return False
        text, table = named[0]
        if not any(one.is_named and any(list_rows(text, one)) for one in self._tables):
            self._tables, self._begin, self._strangers = [table], row, 0
            self._said = _read_above(above())
        return True

    def _takes_units(self, text: str) -> bool:
        """Take a row below the head that has the units of columns; tell whether it is one."""
        for table in self._tables:
            told = cells.split_cells(text, table.way)
            scales = [find_scale(cell) for cell in told]
            is_all = all(
                scale or not cell.strip("-() ") for cell, scale in zip(told, scales, strict=True)
            )
            if len(told) == len(table.columns) and is_all and any(scales):
                table.scales = scales
                return True
        return False

    def _read_cells(
        self, line: LogLine, row: int, table: RankTable, told: list[str]
    ) -> list[TabledSeen] | None:
        """Return what a row tells, None where it is no row of the table."""
        if table.rank_at >= 0:
            return self._read_rank(line, row, table, told)
        return self._read_ranks(line, row, table, told)

    def _read_rank(
        self, line: LogLine, row: int, table: RankTable, told: list[str]
    ) -> list[TabledSeen] | None:
        """Read a row that is of one rank, or of several that are alike."""
        ranks = cells.list_numbers(told[table.rank_at])
        values = [
            (column, cell, scale)
            for at, (column, cell, scale) in enumerate(
                zip(table.columns, told, table.scales, strict=True)
            )
            if at not in (table.rank_at, table.host_at)
        ]
        if not ranks or not any(cells.read_value(cell) for _, cell, _ in values):
            return None
        groups = self._read_values(values)
        base: dict[str, str] = {}
        if table.host_at >= 0 and told[table.host_at]:
            base["host"] = told[table.host_at]
        stages = [cell for column, cell, _ in values if column.names[0].kind == "stage"]
        base |= {"stage": "/".join(stages)} if stages else {}
        return [
            TabledSeen(name, row, line, self._make_base(table, rank) | base | told)
            for rank in ranks
            for name, told in groups
        ]

    def _read_values(
        self, values: Sequence[tuple[Column, str, float]]
    ) -> list[tuple[str, dict[str, str]]]:
        """Return what the cells of a row tell, without whose they are."""
        steps = [cell for column, cell, _ in values if column.names[0].kind == "step"]
        step = steps[0] if steps and steps[0].isdecimal() else ""
        found: list[tuple[str, dict[str, str]]] = []
        parts: dict[str, str] = {}
        for column, cell, scale in values:
            for name, part in pair_names(column, cell):
                parts |= self._name_part(name, part, scale, parts)
                if groups := self._make_sum(name, part, step):
                    found.append(("table.value", groups))
                elif groups := self._make_time(name, part, scale):
                    found.append(("table.time", groups))
        return [*found, ("table.work", parts)] if {"work", "took"} <= parts.keys() else found

    def _make_base(self, table: RankTable, rank: int) -> dict[str, str]:
        base = {"table": f"{self._begin}", "own": str(rank)}
        if table.is_device:
            base["by"] = "device of many" if self._said.has_hosts else "device"
        return base

    def _make_sum(self, name: Name, part: str, step: str) -> dict[str, str]:
        """Return the groups of the sum in a cell of a rank, none where it is none."""
        step = step or (find_step(name.text) if self._said.has_sums else "")
        is_told = name.kind == "sum" or (
            self._said.has_sums and (is_sum(name) or find_step(name.text) != "")
        )
        value = read_sum(part) if is_told else ""
        if not value:
            return {}
        told = {"table": f"{self._begin}.{step}:{name.text}", "what": "sum", "sum": value}
        return told | {"step": step} if step else told

    def _name_part(
        self, name: Name, part: str, scale: float, known: dict[str, str]
    ) -> dict[str, str]:
        """Return how much a rank had to do, or how long that took, as a cell tells."""
        value = cells.read_value(part)
        if value is None:
            return {}
        if name.kind == "work" and "work" not in known:
            return {"work": f"{value[0]:.0f}"}
        if name.kind == "time" and "took" not in known and _is_of_work(name.text):
            ms = name.scale or scale or find_scale(value[1]) or self._said.scale
            told = {"took": str(value[0] * (ms or 1.0)), "phase": name.text or self._said.phase}
            return told if ms else told | {"bare": told["took"]}
        return {}

    def _make_time(self, name: Name, part: str, scale: float) -> dict[str, str]:
        """Return the groups of the time in a cell, none where it is no time."""
        value = cells.read_value(part)
        is_time = name.kind == "time" or (name.kind == "step" and "." in part)
        if value is None or not is_time or not self._said.has_times:
            return {}
        phase = name.text or self._said.phase
        ms = name.scale or scale or find_scale(value[1]) or self._said.scale
        told = {"ms": str(value[0] * ms)} if ms else {"bare": str(value[0])}
        return {"phase": phase, **told} if phase else {}

    def _read_ranks(
        self, line: LogLine, row: int, table: RankTable, told: list[str]
    ) -> list[TabledSeen] | None:
        """Read a row that has a cell of each rank."""
        of_ranks = [
            (column, cell)
            for column, cell in zip(table.columns, told, strict=True)
            if column.rank >= 0
        ]
        if sum(read_sum(cell.split("/")[0].strip()) != "" for _, cell in of_ranks) < _LEAST_RANKS:
            return None
        first = next(
            (
                cell
                for column, cell in zip(table.columns, told, strict=True)
                if column.rank < 0 and cell
            ),
            "",
        )
        step = find_step(first)
        is_step = bool(step) or not first
        head = (
            Name(self._said.phase, "time" if self._said.phase else "")
            if is_step
            else read_name(first)
        )
        has_sum = head.kind == "sum" or (self._said.has_sums and not is_own(head))
        found = []
        works: dict[int, dict[str, str]] = {}
        for column, cell in of_ranks:
            base = self._make_base(table, column.rank)
            if has_sum:
                groups = base | {"table": str(row), "what": "sum", "sum": read_sum(cell)}
                groups |= {"step": step} if step else {}
                found += [TabledSeen("table.value", row, line, groups)] if groups["sum"] else []
                continue
            known = works.setdefault(column.rank, {})
            for name, part in pair_names(column, cell):
                mine = name if name.kind else head
                known |= self._name_part(mine, part, 0.0, known)
                if groups := self._make_time(mine, part, 0.0):
                    found.append(TabledSeen("table.time", row, line, base | groups))
            if {"work", "took"} <= known.keys():
                found.append(TabledSeen("table.work", row, line, base | works.pop(column.rank)))
        return found


def _is_telling(table: RankTable, said: _Said) -> bool:
    names = [name for column in table.columns for name in column.names]
    has_sums = said.has_sums and any(is_sum(name) or find_step(name.text) for name in names)
    return has_sums or any(name.kind in ("time", "sum") for name in names)


def _has_norms(table: RankTable) -> bool:
    names = [name for column in table.columns for name in column.names]
    kinds = [name.kind for name in names if table.rank_at >= 0]
    return "sum" in kinds and any(map(is_hash, names))


def _is_of_work(name: str) -> bool:
    """Whether what a rank had to do is told by a time: not by that of its waits."""
    small = name.lower()
    return not any(word in small for word in ("wait", "comm", "reduce", "sync", "total", "gather"))
