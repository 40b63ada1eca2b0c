"""The first errors of the logs and the lines that nobody knows, in the same words everywhere."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.evidence.logs.report import ClockOffset, FirstLine, LogSummary, UnknownLine
from whystuck.evidence.ranks import name_ranks, parse_ranks
from whystuck.report.figures import format_duration
from whystuck.safe_text.escaping import show_line

_MAX_FIRST = 8
_MAX_UNKNOWN = 4
_MAX_CLOCKS = 3
_MIN_TEXT = 24
_MIN_PLACE = 12
_MAX_TIME = len("2026-01-31 10:00:00.123Z")
_STEP = 1024.0
_DATE = len("2026-01-31T")


@dataclass(frozen=True)
class LogRow:
    """One line of the table; ``mark`` is ``cause`` where the first finding rests on it."""

    mark: str
    time: str
    who: str
    place: str
    text: str


@dataclass(frozen=True)
class LogTable:
    """What is shown of logs: first errors, unknown lines, and notes below them."""

    title: str
    rows: tuple[LogRow, ...]
    more: str
    unknown: tuple[LogRow, ...]
    more_unknown: str
    notes: tuple[str, ...]


def lay_out_logs(logs: LogSummary, *, whole: bool = False) -> LogTable | None:
    """Put what logs tell into words.

    Args:
        logs: The summary in a report.
        whole: Whether there is room for all of it.

    Returns:
        The table; None when there is nothing to show.
    """
    if not logs.first and not logs.unknown:
        return None
    first = logs.first if whole else _choose(logs.first)
    unknown = logs.unknown if whole else logs.unknown[:_MAX_UNKNOWN]
    dates = {line.time[:_DATE] for line in logs.first if line.time}
    return LogTable(
        title=_title(logs),
        rows=tuple(_lay_out(line, with_date=len(dates) > 1) for line in first),
        more=_count_more(len(logs.first) - len(first), "other beginnings"),
        unknown=tuple(_lay_out_unknown(line) for line in unknown),
        more_unknown=_count_more(len(logs.unknown) - len(unknown), "other unknown lines"),
        notes=tuple(_list_notes(logs)),
    )


def render_logs(logs: LogSummary, width: int) -> Iterator[str]:
    """Yield the lines of the table as text of a width; none when there is nothing to show."""
    table = lay_out_logs(logs)
    if table is None:
        return
    yield table.title
    yield from _columns(table.rows, width)
    if table.more:
        yield f"     {table.more}"
    if table.unknown:
        yield "  that nobody knows:"
        yield from _columns(table.unknown, width)
        if table.more_unknown:
            yield f"     {table.more_unknown}"
    for note in table.notes:
        yield from textwrap.wrap(note, width, initial_indent="  ", subsequent_indent="    ")
    yield ""


def describe_files(logs: LogSummary) -> str:
    """Say how much was read, e.g. ``512 logs, 3.1 GiB``; empty when there were no logs."""
    if not logs.files:
        return ""
    return f"{logs.files} log{'s' * (logs.files != 1)}, {format_bytes(logs.bytes)}"


def format_bytes(number: int) -> str:
    """Write a number of bytes with three digits, e.g. ``3.14 GiB``."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= _STEP and len(units) > 1:
        value, units = value / _STEP, units[1:]
    return f"{value:.0f} {units[0]}" if value >= 100 else f"{value:.3g} {units[0]}"  # noqa: PLR2004 - three digits


def _choose(first: Sequence[FirstLine]) -> list[FirstLine]:
    """Choose the lines for one screen: the first ones, and what the finding rests on."""
    causes = [line for line in first if line.is_cause][:_MAX_FIRST]
    others = [line for line in first if not line.is_cause][: _MAX_FIRST - len(causes)]
    chosen = {id(line) for line in (*causes, *others)}
    return [line for line in first if id(line) in chosen]


def _title(logs: LogSummary) -> str:
    title = f"first errors in the logs, of {logs.records} in all"
    return f"{title}, in {logs.attempts} attempts" if logs.attempts > 1 else title


def _lay_out(line: FirstLine, *, with_date: bool) -> LogRow:
    ranks = parse_ranks(line.ranks)
    parts = [name_ranks(ranks)] if ranks else []
    if line.node and len(ranks) <= 1:
        parts.append(line.node)
    return LogRow(
        mark="cause" if line.is_cause else "",
        time=_shorten_time(line.time, with_date=with_date),
        who=show_line(" on ".join(parts)),
        place=_place(line.artifact, line.row),
        text=show_line(line.text),
    )


def _shorten_time(text: str, *, with_date: bool) -> str:
    """Leave out a date that all lines share, and what is finer than milliseconds."""
    date, _, clock = show_line(text).partition("T")
    whole, dot, rest = clock.partition(".")
    zone = "Z" if clock.endswith("Z") else ""
    clock = f"{whole}.{rest[:3].rstrip('Z')}{zone}" if dot else clock
    return f"{date} {clock}" if with_date else clock


def _lay_out_unknown(line: UnknownLine) -> LogRow:
    ranks = parse_ranks(line.ranks)
    return LogRow(
        mark="",
        time=f"{line.count}x",
        who=name_ranks(ranks) if ranks else "",
        place=_place(line.artifact, line.row),
        text=show_line(line.template),
    )


def _place(artifact: str, row: int | None) -> str:
    return show_line(f"{artifact}:{row}" if row else artifact)


def _count_more(number: int, what: str) -> str:
    return f"and {number} {what}: `whystuck logs --list` has all errors" if number > 0 else ""


def _columns(rows: Sequence[LogRow], width: int) -> Iterator[str]:
    time = min(max((len(row.time) for row in rows), default=0), _MAX_TIME)
    who = min(max((len(row.who) for row in rows), default=0), width // 4)
    for row in rows:
        name = show_line(row.who, max(who, 2))
        line = f"  {'->' if row.mark else '  '} {row.time:<{time}}  {name:<{who}}  "
        line += _keep_end(row.place, max(width - len(line), _MIN_PLACE))
        room = width - len(line) - 2
        if room >= min(_MIN_TEXT, len(row.text)):
            yield f"{line}  {show_line(row.text, room)}"
        else:
            yield line
            yield f"       {show_line(row.text, width - 7)}"


def _keep_end(place: str, room: int) -> str:
    """Cut a path at its beginning: the end has the file and the line."""
    return place if len(place) <= room else f"…{place[1 - room :]}"


def _list_notes(logs: LogSummary) -> Iterator[str]:
    if len({line.time for line in logs.first}) > 1:
        yield from _list_offsets(logs.clocks)
    if logs.unmatched_clocks:
        names = [show_line(name) for name in logs.unmatched_clocks[:_MAX_CLOCKS]]
        more = len(logs.unmatched_clocks) - len(names)
        tail = f" and {more} more" if more > 0 else ""
        several = "s" * (len(logs.unmatched_clocks) > 1)
        yield (
            f"nothing tells how far the clock{several} of {', '.join(names)}{tail} "
            f"{'are' if several else 'is'} off"
        )


def _list_offsets(clocks: Sequence[ClockOffset]) -> Iterator[str]:
    """Tell of clocks that are off, where there is an order of several times."""
    if len(clocks) <= _MAX_CLOCKS:
        yield from map(_describe_offset, clocks)
        return
    most = format_duration(max(abs(one.ahead_s) for one in clocks))
    error = format_duration(max(one.error_s for one in clocks))
    yield (
        f"the clocks of {len(clocks)} hosts are off by up to {most} (known within {error}); "
        "times are put right"
    )


def _describe_offset(offset: ClockOffset) -> str:
    way = "ahead of" if offset.ahead_s > 0 else "behind"
    return show_line(
        f"the clock of {offset.clock} is {format_duration(abs(offset.ahead_s))} {way} that of "
        f"{offset.reference} (within {format_duration(offset.error_s)}); times are put right"
    )
