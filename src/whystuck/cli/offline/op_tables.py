"""The files of ``whystuck diagnose --tables``: every recorded op, and what ops cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec

from whystuck.cli.offline.fr_tables import as_parquet, clean_table, encode_row, iterate_rows
from whystuck.cli.output import write_file
from whystuck.diagnose.summaries.op_tables import make_communication_table, make_ops_table
from whystuck.diagnose.summaries.recorded import Table
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence
from whystuck.safe_text.values import Cleaner

_PART_BYTES = 1 << 20
FORMS = ("csv", "json", "parquet")


def write_op_tables(folder: Path, form: str, evidence: Evidence, report: Report) -> None:
    """Write ``communication.csv``, and all ops as ``ops.csv``, ``ops.json`` or ``ops.parquet``.

    Args:
        folder: Where to write; it is made when it is not there.
        form: One of `FORMS`, for the ops.
        evidence: What was read.
        report: What was made of it.

    Raises:
        UsageError: The folder cannot be written, or pyarrow is needed and not there.
    """
    write_table(folder, "csv", make_communication_table(report.communication))
    write_table(folder, form, make_ops_table(evidence.ops))


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
    path = folder / f"{table.name}.{form}"
    table = clean_table(table)
    if form == "parquet":
        write_file(path, as_parquet(table, "use `--tables-format csv`"))
    else:
        write_file(path, _as_csv(table) if form == "csv" else _as_json(table))


def _as_json(table: Table) -> Iterator[bytes]:
    """Write an array with an object for each row."""
    separator = b"[\n"
    for row in iterate_rows(table):
        yield separator + encode_row(row)
        separator = b",\n"
    yield b"\n]\n" if len(table) else b"[]\n"


def _as_csv(table: Table) -> Iterator[bytes]:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    cleaner = Cleaner()
    writer.writerow(table.columns)
    for row in iterate_rows(table):
        writer.writerow([_as_cell(value, cleaner) for value in row.values()])
        if stream.tell() > _PART_BYTES:
            yield _drain(stream)
    yield _drain(stream)


def _drain(stream: io.StringIO) -> bytes:
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text.encode("utf-8", errors="replace")


def _as_cell(value: object, cleaner: Cleaner) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        value = msgspec.json.encode(value).decode()
    # Names come from the job, and a name may be a formula of whoever wrote the log.
    return cleaner.cell(value) if isinstance(value, str) else value
