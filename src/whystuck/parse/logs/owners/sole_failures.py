"""Giving a traceback that nobody signed to the one rank that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent

# What launchers send to the ranks that are left.
_LAUNCHER_SIGNALS = {9, 15}


def name_sole_failure(
    events: Sequence[LogEvent], exceptions: Sequence[PythonException], exits: Sequence[ExitRecord]
) -> tuple[list[LogEvent], list[PythonException]]:
    """Give the only traceback without a rank to the only rank that failed, as its launcher tells.

    Older releases of torch put no rank before the lines of a traceback.

    Args:
        events: The known lines of all logs.
        exceptions: The tracebacks.
        exits: The ends of processes.

    Returns:
        The events and the exceptions, with that rank where it was unknown.
    """
    nameless = [item for item in exceptions if item.rank == UNKNOWN_RANK and not item.is_caught]
    if len(nameless) != 1:
        return list(events), list(exceptions)
    item = nameless[0]
    rank = _find_failed(item, exits)
    if rank == UNKNOWN_RANK or any(one.rank == rank for one in exceptions):
        return list(events), list(exceptions)
    named = [replace(one, rank=rank) if one is item else one for one in exceptions]
    return [_name(event, item, rank) for event in events], named


def _find_failed(item: PythonException, exits: Sequence[ExitRecord]) -> int:
    told = [one for one in exits if one.artifact == item.artifact and one.attempt == item.attempt]
    failed = {one.rank for one in told if one.code}
    struck = {one.rank for one in told if one.signal and one.signal not in _LAUNCHER_SIGNALS}
    return failed.pop() if len(failed) == 1 and not struck else UNKNOWN_RANK


def _name(event: LogEvent, item: PythonException, rank: int) -> LogEvent:
    is_in = event.artifact == item.artifact and item.row <= event.row <= item.last_row
    return replace(event, rank=rank) if is_in and event.rank == UNKNOWN_RANK else event
