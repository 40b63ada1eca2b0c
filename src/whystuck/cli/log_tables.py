"""All errors of the logs as a table: for programs, and for ``whystuck logs --list``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from whystuck.cli.op_tables import write_table
from whystuck.cli.output import OutputOptions
from whystuck.cli.stdout import encode_for_stdout
from whystuck.diagnose.log_records import list_records
from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.recorded import Column, Table
from whystuck.evidence.finding import Report
from whystuck.evidence.log_report import LogRecord
from whystuck.evidence.model import Evidence
from whystuck.report.clean import clean_line
from whystuck.report.redact import redact_records
from whystuck.report.secrets import hide_secrets

TABLES_VERSION = 1
_WHOLE = ("shift_ns", "rank", "pid", "attempt", "count")
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
    records = [_without_secrets(one) for one in list_records(LogView(evidence), report.findings)]
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
        return msgspec.json.format(msgspec.json.encode(shown), indent=1) + b"\n"
    lines = "".join(f"{line}\n" for line in _list_lines(records))
    return lines.encode() if output.file is not None else encode_for_stdout(lines)


def _list_lines(records: Sequence[LogRecord]) -> Iterator[str]:
    for record in records:
        if record.role == "context":
            continue
        mark = "->" if record.is_cause else "1." if record.is_first else "  "
        who = f"rank {record.rank}" if record.rank >= 0 else "-"
        place = f"{record.artifact}:{record.row}" if record.row else record.artifact
        known = record.signature or record.kind
        times = f" ({record.count}x)" if record.count > 1 else ""
        yield clean_line(
            f"{mark} {record.time or '-'} {who} {record.node or '-'} {place} [{known}] "
            f"{record.text}{times}"
        )


def _without_secrets(record: LogRecord) -> LogRecord:
    text = hide_secrets(record.text)
    return record if text is record.text else msgspec.structs.replace(record, text=text)
