"""Tables as files: CSV, JSON or Parquet, one a table, written in pieces."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.cli.output import opened_file
from whystuck.diagnose.summaries.recorded import TABLES_VERSION, Coded, Table
from whystuck.evidence import table as figures
from whystuck.evidence.arrow import import_arrow
from whystuck.evidence.errors import UsageError
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.guarded.remote import hide_user_info, join, written
from whystuck.safe_text.escaping import escape_json
from whystuck.safe_text.values import Cleaner

FORMS = ("csv", "json", "parquet")

_CHUNK_ROWS = 20_000

Column = NDArray[Any] | Coded | list[Any]
Columns = Mapping[str, Column]


@dataclass(frozen=True)
class ArrowLayout:
    """What a Parquet file has beside the values.

    Attributes:
        types: The types of columns that are no arrays of numbers, by the name of the column, of
            the function that gets pyarrow and the name; text when left out.
        metadata: What stands in the file beside its columns.
        instead: What can be done where pyarrow cannot be had.
    """

    types: Callable[[Any, str], Any] = lambda arrow, _: arrow.string()
    metadata: Mapping[str, str] = field(default_factory=dict)
    instead: str = "use `--tables-format csv`"


# Columns of lists that hold numbers; those of arrays tell their type.
_NUMBERS = {"rank", "last_rank", "sequence", "line", "site", "source", "target", "size",
            "first_record", "row", "thread_id", "tag", "input_bytes", "output_bytes"}  # fmt: skip


def _find_type(arrow: Any, name: str) -> Any:  # noqa: ANN401 - an optional module
    kinds = {
        "sizes": arrow.list_(arrow.list_(arrow.int64())),
        "dtypes": arrow.list_(arrow.string()),
        "splits": arrow.list_(arrow.int64()),
        "stack": arrow.list_(arrow.string()),
    }
    is_number = name in _NUMBERS or name.endswith("_ns")
    return kinds.get(name.rpartition("_")[2], arrow.int64() if is_number else arrow.string())


FIGURES = ArrowLayout()
RECORDED = ArrowLayout(_find_type, {"whystuck_schema_version": str(TABLES_VERSION)})


class TableFiles:
    """Writes tables into a folder; each file appears when all of it is written."""

    def __init__(self, folder: str, form: str, only: Collection[str] = ()) -> None:
        """Write to a folder.

        Args:
            folder: A path, or a URL that fsspec knows; it is made when it is not there.
            form: One of `FORMS`.
            only: The tables to write; all that come when empty.

        Raises:
            UsageError: pyarrow is needed and not there.
        """
        self._folder, self._form, self._only = folder, form, frozenset(only)
        self._open: dict[str, _TableFile] = {}
        self._stack = ExitStack()
        self._cleaner = Cleaner()
        self.written: dict[str, int] = {}
        if form == "parquet":
            _import_arrow(FIGURES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                for file in self._open.values():
                    file.close()
            self._stack.__exit__(kind, problem, traceback)
        except OSError as error:
            raise self._unwritable(error) from error

    def write_rows(self, name: str, table: figures.Table) -> None:
        """Write rows below those that came before them.

        Args:
            name: The table, and its file.
            table: The rows; the first ones tell the columns.

        Raises:
            UsageError: The folder cannot be written.
        """
        if not table.columns or (self._only and name not in self._only):
            return
        try:
            file = self._open.get(name) or self._start(name, table)
            file.write(_clean(table.columns, self._cleaner))
        except OSError as error:
            raise self._unwritable(error) from error
        self.written[name] = self.written.get(name, 0) + len(table)

    def write_summary(self, summary: TraceSummary) -> None:
        """Write the tables of a summary that were not written rank by rank."""
        for name, table in sorted(summary.tables.items()):
            if name not in self._open:
                self.write_rows(name, table)

    def _start(self, name: str, table: figures.Table) -> _TableFile:
        place = join(self._folder, f"{name}.{self._form}")
        stream = self._stack.enter_context(written(place))
        self._open[name] = file = _open_table(self._form, stream, table.columns, FIGURES)
        return file

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot write to `{hide_user_info(self._folder)}`: {error.strerror or error}",
            hint="`--tables` needs a folder or URL that can be written",
        )


def write_table(folder: Path, form: str, table: Table) -> None:
    """Write a table as ``NAME.csv``, ``NAME.json`` or ``NAME.parquet``.

    Args:
        folder: Where to write; it is made when it is not there.
        form: One of `FORMS`.
        table: What to write; the file has its name.

    Raises:
        UsageError: The folder cannot be written, or pyarrow is needed and not there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(
            f"cannot write to `{folder}`: {problem.strerror or problem}",
            hint="`--tables` needs a folder that can be written",
        ) from problem
    write_file_of(folder / f"{table.name}.{form}", form, table)


def write_file_of(path: Path, form: str, table: Table, layout: ArrowLayout = RECORDED) -> None:
    """Write a whole table as one file, without the secrets in its texts.

    Raises:
        UsageError: The file cannot be written, or pyarrow is needed and not there.
    """
    columns = _clean(table.columns, Cleaner())
    if form == "parquet":
        _import_arrow(layout)
    with opened_file(path) as stream:
        file = _open_table(form, stream, columns, layout)
        file.write(columns)
        file.close()


def clean_table(table: Table) -> Table:
    """Return a table without the secrets in its texts."""
    return Table(table.name, dict(_clean(table.columns, Cleaner())))


def _clean(columns: Columns, cleaner: Cleaner) -> Columns:
    return {name: _clean_column(column, cleaner) for name, column in columns.items()}


def _clean_column(column: Column, cleaner: Cleaner) -> Column:
    if isinstance(column, Coded):
        return Coded(column.codes, cleaner.column(column.values))
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column
    return cleaner.column(column)


def encode_rows(columns: Columns) -> Iterator[bytes]:
    """Yield each row as an object of JSON that is safe to print."""
    names = list(columns)
    for part in _cut(columns):
        for row in zip(*map(_list_values, part), strict=True):
            text = msgspec.json.encode(dict(zip(names, row, strict=True))).decode()
            yield escape_json(text).encode()


def _cut(columns: Columns) -> Iterator[list[NDArray[Any] | list[Any]]]:
    """Yield the columns, a part of the rows at a time."""
    rows = len(Table("", dict(columns)))
    for start in range(0, rows, _CHUNK_ROWS):
        chosen = slice(start, start + _CHUNK_ROWS)
        yield [
            [column.values[code] for code in column.codes[chosen].tolist()]
            if isinstance(column, Coded)
            else column[chosen]
            for column in columns.values()
        ]


def _list_values(part: NDArray[Any] | list[Any]) -> list[Any]:
    return part.tolist() if isinstance(part, np.ndarray) else part


class _TableFile(Protocol):
    def write(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


def _open_table(form: str, stream: IO[bytes], columns: Columns, layout: ArrowLayout) -> _TableFile:
    if form == "parquet":
        return _ParquetFile(stream, columns, layout)
    return _CsvFile(stream, columns) if form == "csv" else _JsonFile(stream)


class _CsvFile:
    """Whole numbers as they are; NaN is empty, as is an unknown text; true is 1."""

    def __init__(self, stream: IO[bytes], columns: Columns) -> None:
        self._stream = stream
        self._cleaner = Cleaner()
        self._put([list(columns)])

    def write(self, columns: Columns) -> None:
        for part in _cut(columns):
            self._put(list(zip(*map(self._list_cells, part), strict=True)))

    def close(self) -> None:
        """Nothing comes after the last row."""

    def _list_cells(self, part: NDArray[Any] | list[Any]) -> list[Any]:
        if isinstance(part, list) or part.dtype == object:
            return [self._make_cell(value) for value in _list_values(part)]
        if part.dtype == np.bool_:
            return list(part.astype(np.int8).tolist())
        values = part.tolist()
        if part.dtype.kind == "f":
            # Not equal to itself: NaN.
            return ["" if value != value else value for value in values]  # noqa: PLR0124
        return list(values)

    def _make_cell(self, value: object) -> object:
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, list):
            value = msgspec.json.encode(value).decode()
        # Names come from the job, and may be a formula of whoever wrote them.
        return self._cleaner.cell(value) if isinstance(value, str) else value

    def _put(self, rows: list[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._stream.write(text.getvalue().encode("utf-8", errors="replace"))


class _JsonFile:
    """An array with an object for each row; NaN is null."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._separator = stream, b"[\n"

    def write(self, columns: Columns) -> None:
        for row in encode_rows(columns):
            self._stream.write(self._separator + row)
            self._separator = b",\n"

    def close(self) -> None:
        self._stream.write(b"[]\n" if self._separator == b"[\n" else b"\n]\n")


class _ParquetFile:
    """One group of rows for each piece, with the types of the first."""

    def __init__(self, stream: IO[bytes], columns: Columns, layout: ArrowLayout) -> None:
        self._arrow, parquet = _import_arrow(layout)
        self._layout = layout
        schema = self._convert(
            {name: _take_none(column) for name, column in columns.items()}
        ).schema
        self._writer = parquet.ParquetWriter(stream, schema, compression="zstd")

    def write(self, columns: Columns) -> None:
        self._writer.write_table(self._convert(columns))

    def close(self) -> None:
        self._writer.close()

    def _convert(self, columns: Columns) -> Any:  # noqa: ANN401 - an optional module
        metadata = dict(self._layout.metadata) or None
        made = {name: self._make_array(name, column) for name, column in columns.items()}
        return self._arrow.table(made, metadata=metadata)

    def _make_array(self, name: str, column: Column) -> Any:  # noqa: ANN401 - as above
        if isinstance(column, np.ndarray) and column.dtype != object:
            return self._arrow.array(column)
        kind = self._layout.types(self._arrow, name)
        if isinstance(column, Coded):
            values = self._arrow.array(list(column.values), type=kind)
            return values.take(self._arrow.array(column.codes))
        return self._arrow.array(column, type=kind)


def _take_none(column: Column) -> Column:
    """Return a column of the same kind without rows."""
    return Coded(column.codes[:0], column.values) if isinstance(column, Coded) else column[:0]


def _import_arrow(layout: ArrowLayout) -> tuple[Any, Any]:
    return import_arrow("Parquet files need", layout.instead)
