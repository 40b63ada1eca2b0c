"""The files of ``whystuck fr -o``: what the dumps hold, as JSON, JSON Lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from whystuck.cli.output import write_file
from whystuck.cli.table_files import RECORDED, clean_table, encode_rows, write_file_of
from whystuck.diagnose.summaries.recorded import TABLES_VERSION, Table, make_tables
from whystuck.evidence.model import Evidence

_MAIN_TABLE = "ops"
_LAYOUT = replace(RECORDED, instead="write FILE.json or FILE.jsonl")


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
    tables = make_tables(evidence)
    if suffix == ".parquet":
        for table in tables:
            is_main = table.name == _MAIN_TABLE
            target = path if is_main else path.with_suffix(f".{table.name}.parquet")
            write_file_of(target, "parquet", table, _LAYOUT)
        return
    tables = tuple(map(clean_table, tables))
    write_file(path, _as_json(tables) if suffix == ".json" else _as_lines(tables))


def _as_json(tables: tuple[Table, ...]) -> Iterator[bytes]:
    yield b'{"schema_version":%d' % TABLES_VERSION
    for table in tables:
        yield b',\n"%s":[\n' % table.name.encode()
        separator = b""
        for row in encode_rows(table.columns):
            yield separator + row
            separator = b",\n"
        yield b"]"
    yield b"}\n"


def _as_lines(tables: tuple[Table, ...]) -> Iterator[bytes]:
    for table in tables:
        named = {"table": [table.name] * len(table), **table.columns}
        for row in encode_rows(named):
            yield row + b"\n"
