"""Tables of traces as files: CSV, JSON or Parquet, one a table, written in pieces."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Protocol, Self

import msgspec
import numpy as np

from whystuck.evidence.errors import UsageError
from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.guarded.remote import hide_user_info, join, written
from whystuck.read.arrow import import_arrow
from whystuck.safe_text.escaping import escape_json
from whystuck.safe_text.values import Cleaner

FORMS = ("csv", "json", "parquet")

_CHUNK_ROWS = 20_000
_ARROW = ("Parquet files need", "use `--tables-format csv`")


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
            import_arrow(*_ARROW)

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

    def write_rows(self, name: str, table: Table) -> None:
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
            file.write(self._clean(table))
        except OSError as error:
            raise self._unwritable(error) from error
        self.written[name] = self.written.get(name, 0) + len(table)

    def write_summary(self, summary: TraceSummary) -> None:
        """Write the tables of a summary that were not written rank by rank."""
        for name, table in sorted(summary.tables.items()):
            if name not in self._open:
                self.write_rows(name, table)

    def _clean(self, table: Table) -> Table:
        texts = {
            name: text_column(self._cleaner.column(column.tolist()))
            for name, column in table.columns.items()
            if column.dtype == object
        }
        return Table({**table.columns, **texts}) if texts else table

    def _start(self, name: str, table: Table) -> _TableFile:
        place = join(self._folder, f"{name}.{self._form}")
        stream = self._stack.enter_context(written(place))
        self._open[name] = file = _WRITERS[self._form](stream, table)
        return file

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot write to `{hide_user_info(self._folder)}`: {error.strerror or error}",
            hint="`--tables` needs a folder or URL that can be written",
        )


class _TableFile(Protocol):
    def write(self, table: Table) -> None: ...

    def close(self) -> None: ...


class _CsvFile:
    """Whole numbers as they are; NaN is empty, as is an unknown text; true is 1."""

    def __init__(self, stream: IO[bytes], table: Table) -> None:
        self._stream, self._names = stream, list(table.columns)
        self._cleaner = Cleaner()
        self._put([self._names])

    def write(self, table: Table) -> None:
        for start in range(0, len(table), _CHUNK_ROWS):
            part = [self._cells(table[name][start : start + _CHUNK_ROWS]) for name in self._names]
            self._put(list(zip(*part, strict=True)))

    def close(self) -> None:
        """Nothing comes after the last row."""

    def _cells(self, column: Column) -> list[Any]:
        if column.dtype == np.bool_:
            return list(column.astype(np.int8).tolist())
        values = column.tolist()
        if column.dtype.kind == "f":
            # Not equal to itself: NaN.
            return ["" if value != value else value for value in values]  # noqa: PLR0124
        if column.dtype == object:
            # Names come from the job, and may be a formula of whoever wrote them.
            return [self._cleaner.cell(value) for value in values]
        return list(values)

    def _put(self, rows: list[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._stream.write(text.getvalue().encode("utf-8", errors="replace"))


class _JsonFile:
    """An array with an object for each row; NaN is null."""

    def __init__(self, stream: IO[bytes], table: Table) -> None:
        self._stream, self._names, self._separator = stream, list(table.columns), b"[\n"

    def write(self, table: Table) -> None:
        for start in range(0, len(table), _CHUNK_ROWS):
            part = [table[name][start : start + _CHUNK_ROWS].tolist() for name in self._names]
            for row in zip(*part, strict=True):
                item = msgspec.json.encode(dict(zip(self._names, row, strict=True))).decode()
                self._stream.write(self._separator + escape_json(item).encode())
                self._separator = b",\n"

    def close(self) -> None:
        self._stream.write(b"[]\n" if self._separator == b"[\n" else b"\n]\n")


class _ParquetFile:
    """One group of rows for each piece, with the types of the first."""

    def __init__(self, stream: IO[bytes], table: Table) -> None:
        self._arrow, parquet = import_arrow(*_ARROW)
        empty = self._convert(table.take(slice(0, 0)))
        self._writer = parquet.ParquetWriter(stream, empty.schema, compression="zstd")

    def write(self, table: Table) -> None:
        self._writer.write_table(self._convert(table))

    def close(self) -> None:
        self._writer.close()

    def _convert(self, table: Table) -> Any:  # noqa: ANN401 - an optional module
        text = self._arrow.string()
        return self._arrow.table(
            {
                name: self._arrow.array(column, type=text if column.dtype == object else None)
                for name, column in table.columns.items()
            }
        )


_WRITERS: Mapping[str, Callable[[IO[bytes], Table], _TableFile]] = {
    "csv": _CsvFile,
    "json": _JsonFile,
    "parquet": _ParquetFile,
}
