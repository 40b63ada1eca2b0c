"""The files of ``whystuck fr -o``: what the dumps hold, as JSON, JSON Lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whystuck.cli.output import write_file
from whystuck.diagnose.summaries.recorded import TABLES_VERSION, Coded, Column, Table, make_tables
from whystuck.evidence.model import Evidence
from whystuck.read.arrow import import_arrow
from whystuck.safe_text.escaping import escape_json
from whystuck.safe_text.values import Cleaner

_MAIN_TABLE = "ops"
_CHUNK = 10_000
# Columns of lists that hold numbers; those of arrays tell their type.
_NUMBERS = {"rank", "last_rank", "sequence", "line", "site", "source", "target", "size",
            "first_record", "row", "thread_id", "tag", "input_bytes", "output_bytes"}  # fmt: skip


def write_tables(path: Path, evidence: Evidence) -> None:
    """Write all tables, in the form that the suffix of the file asks for.

    Args:
        path: ``FILE.json`` and ``FILE.jsonl`` hold all tables; ``FILE.parquet`` holds the ops,
            and the other tables go beside it, as ``FILE.collectives.parquet`` and so on.
        evidence: What was read.

    Raises:
        UsageError: The file cannot be written, or pyarrow is needed and not there.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        _write_parquet(path, evidence)
        return
    tables = tuple(map(clean_table, make_tables(evidence)))
    write_file(path, _as_json(tables) if suffix == ".json" else _as_lines(tables))


def _as_json(tables: tuple[Table, ...]) -> Iterator[bytes]:
    yield b'{"schema_version":%d' % TABLES_VERSION
    for table in tables:
        yield b',\n"%s":[\n' % table.name.encode()
        separator = b""
        for row in iterate_rows(table):
            yield separator + encode_row(row)
            separator = b",\n"
        yield b"]"
    yield b"}\n"


def _as_lines(tables: tuple[Table, ...]) -> Iterator[bytes]:
    for table in tables:
        for row in iterate_rows(table):
            yield encode_row({"table": table.name, **row}) + b"\n"


def clean_table(table: Table) -> Table:
    """Return a table without the secrets in its texts."""
    cleaner = Cleaner()
    return Table(
        table.name,
        {name: _clean(column, cleaner) for name, column in table.columns.items()},
    )


def encode_row(row: dict[str, Any]) -> bytes:
    """Write a row as JSON that is safe to print."""
    return escape_json(msgspec.json.encode(row).decode()).encode()


def _clean(column: Column, cleaner: Cleaner) -> Column:
    if isinstance(column, Coded):
        return Coded(column.codes, cleaner.column(column.values))
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column
    return cleaner.column(column)


def iterate_rows(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a part of it at a time."""
    names = list(table.columns)
    for start in range(0, len(table), _CHUNK):
        columns = [_cut(column, start, start + _CHUNK) for column in table.columns.values()]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _cut(column: Column, start: int, stop: int) -> list[Any]:
    if isinstance(column, Coded):
        return [column.values[code] for code in column.codes[start:stop].tolist()]
    part = column[start:stop]
    return part.tolist() if isinstance(part, np.ndarray) else part


def _write_parquet(path: Path, evidence: Evidence) -> None:
    for table in map(clean_table, make_tables(evidence)):
        target = path if table.name == _MAIN_TABLE else path.with_suffix(f".{table.name}.parquet")
        write_file(target, as_parquet(table))


def as_parquet(table: Table, instead: str = "write FILE.json or FILE.jsonl") -> bytes:
    """Write a table as a Parquet file.

    Args:
        table: The table.
        instead: What can be done where pyarrow cannot be had.

    Returns:
        The content of the file.

    Raises:
        UsageError: pyarrow is not there.
    """
    pa, parquet = import_arrow("Parquet files need", instead)
    columns = {name: _as_arrow(pa, name, item) for name, item in table.columns.items()}
    sink = pa.BufferOutputStream()
    made = pa.table(columns, metadata={"whystuck_schema_version": str(TABLES_VERSION)})
    parquet.write_table(made, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _as_arrow(pa: Any, name: str, column: Column) -> Any:  # noqa: ANN401 - an optional module
    kinds = {
        "sizes": pa.list_(pa.list_(pa.int64())),
        "dtypes": pa.list_(pa.string()),
        "splits": pa.list_(pa.int64()),
        "stack": pa.list_(pa.string()),
    }
    is_number = name in _NUMBERS or name.endswith("_ns")
    kind = kinds.get(name.rpartition("_")[2], pa.int64() if is_number else pa.string())
    if isinstance(column, Coded):
        values = pa.array(list(column.values), type=kind)
        return values.take(pa.array(column.codes))
    return pa.array(column) if isinstance(column, np.ndarray) else pa.array(column, type=kind)
