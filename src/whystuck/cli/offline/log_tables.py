"""All errors of the logs as a table: for programs, and for ``whystuck logs --list``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from whystuck.cli.output import OutputOptions
from whystuck.cli.stdout import encode_for_stdout
from whystuck.cli.table_files import write_table
from whystuck.diagnose.logs.records import list_records
from whystuck.diagnose.logs.view import LogView
from whystuck.diagnose.summaries.recorded import Column, Table
from whystuck.evidence.finding import Report
from whystuck.evidence.logs.report import LogRecord
from whystuck.evidence.model import Evidence
from whystuck.report.redact import redact_records
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import Cleaner, encode_json

TABLES_VERSION = 1
_WHOLE = ("shift_ns", "rank", "pid", "attempt", "count")
# So many columns of the list have a width of their own.
_COLUMNS = 6
_YES_OR_NO = ("is_first", "is_cause")


def list_errors(evidence: Evidence, report: Report, *, redact: bool) -> list[LogRecord]:
    """List the errors of the logs, without the lines that only help to understand others.

    Args:
        evidence: What was read.
        report: What was made of it: the records that its first finding rests on are marked.
        redact: Whether to hide names and folders, too; secrets are hidden always.

    Returns:
        The records, those that happened first at the front.
    """
    found = list_records(LogView(evidence), report.findings)
    cleaner = Cleaner()
    records = [cleaner.value(one) for one in found if one.role != "context"]
    return redact_records(records) if redact else records


def write_log_tables(
    folder: Path, form: str, evidence: Evidence, report: Report, *, redact: bool
) -> None:
    """Write all records as ``errors.csv``, ``errors.json`` or ``errors.parquet``.

    Raises:
        UsageError: The folder cannot be written, or pyarrow is needed and not there.
    """
    records = list_errors(evidence, report, redact=redact)
    write_table(folder, form, _make_table(records))


def _make_table(records: Sequence[LogRecord]) -> Table:
    columns: dict[str, Column] = {
        name: [getattr(record, name) for record in records] for name in LogRecord.__struct_fields__
    }
    for name in _WHOLE:
        columns[name] = np.array(columns[name], dtype=np.int64)
    for name in _YES_OR_NO:
        columns[name] = np.array(columns[name], dtype=np.bool_)
    return Table("errors", columns)


def render_list(records: Sequence[LogRecord], output: OutputOptions) -> bytes:
    """Render the list as text or as JSON."""
    if output.format == "json":
        shown = {"schema_version": TABLES_VERSION, "errors": list(records)}
        return encode_json(shown, indent=1)
    lines = "".join(f"{line}\n" for line in _list_lines(records))
    return lines.encode() if output.is_kept else encode_for_stdout(lines)


def _list_lines(records: Sequence[LogRecord]) -> Iterator[str]:
    rows = [_describe(record) for record in records]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:_COLUMNS]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, *row[_COLUMNS:]]).rstrip()


def _describe(record: LogRecord) -> tuple[str, ...]:
    """Write the columns of a record; what has no width of its own comes last."""
    marks = ["first"] if record.is_first else []
    marks += ["cause"] if record.is_cause else []
    times = f" ({record.count} times)" if record.count > 1 else ""
    return (
        " ".join(marks),
        show_line(record.time or "-"),
        f"rank {record.rank}" if record.rank >= 0 else "-",
        show_line(record.node or "-"),
        show_line(f"{record.artifact}:{record.row}" if record.row else record.artifact),
        show_line(record.signature or record.kind),
        show_line(f"{record.text}{times}"),
    )
