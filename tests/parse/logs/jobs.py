"""Reads made-up logs of a job, as the whole reader would."""

from __future__ import annotations

from collections.abc import Mapping

from whystuck.parse.logs.compiled import load_tables
from whystuck.parse.logs.log_inputs import LogInput
from whystuck.parse.logs.owners.names import read_log_name
from whystuck.parse.logs.reader import read_log
from whystuck.parse.logs.tables import LogTable, join_logs


def read_job(**texts: str | bytes) -> LogTable:
    """Read logs, each under the name of its argument with ``__`` for a slash."""
    return read_files({name.replace("__", "/"): text for name, text in texts.items()})


def read_files(texts: Mapping[str, str | bytes], block: int = 1 << 20) -> LogTable:
    """Read logs by their names."""
    tables = load_tables()
    sources = [
        LogInput(
            name,
            read_log(text.encode() if isinstance(text, str) else text, tables, block),
            read_log_name(name),
        )
        for name, text in texts.items()
    ]
    return join_logs(sources, tables.signatures)
