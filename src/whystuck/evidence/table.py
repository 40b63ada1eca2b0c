"""A table of named columns, the one form in which figures of traces travel.

What a rank measured, what is kept beside its trace, what is reduced over ranks and what is written
as CSV or Parquet are all of this form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# int64, float64 or bool columns, or text: an object column of `str`.
Column = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """Columns of one length, in the order in which they are written.

    Times and durations are int64 ns and end in ``_ns``, sizes int64 bytes and end in ``_bytes``;
    shares are float64 from 0 to 1. Text columns hold `str` objects. What is unknown is -1 in a
    column of whole numbers, NaN in one of real ones, and empty in a text.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of a table differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return next((len(column) for column in self.columns.values()), 0)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @classmethod
    def of(cls, names: Iterable[str], columns: Iterable[Column]) -> Table:
        """Return a table of as many columns as there are names, in their order."""
        return cls(dict(zip(names, columns, strict=True)))

    def take(self, rows: Column | slice) -> Table:
        """Return the rows of a mask, an array of positions, or a slice."""
        return Table({name: column[rows] for name, column in self.columns.items()})

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield rows as Python values; for few rows only."""
        return zip(*(column.tolist() for column in self.columns.values()), strict=True)


def text_column(values: Sequence[str]) -> Column:
    """Return a column of text."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def whole_column(values: Sequence[int]) -> Column:
    """Return a column of whole numbers."""
    return np.asarray(values, dtype=np.int64)


def concat_tables(tables: Sequence[Table]) -> Table:
    """Put tables of the same columns below each other.

    Args:
        tables: The tables; those without columns are passed over.

    Returns:
        One table, without columns when there is none.

    Raises:
        ValueError: Their columns differ.
    """
    # One table without rows may stand for many ranks: it counts once.
    empty = {id(table): table for table in tables if table.columns and not len(table)}
    given = [*(table for table in tables if len(table)), *empty.values()]
    if not given:
        return Table()
    names = tuple(given[0].columns)
    if any(tuple(table.columns) != names for table in given):
        raise ValueError("tables with other columns cannot be put below each other")
    return Table({name: np.concatenate([table[name] for table in given]) for name in names})
