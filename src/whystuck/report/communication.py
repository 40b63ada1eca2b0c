"""The table of what ops cost, in the same words for every format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from whystuck.evidence.sections import Communication, CommunicationRow
from whystuck.safe_text.escaping import show_line

_MAX_ROWS = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_STEP_S = 1000.0
_INSPECTOR = "nccl inspector"
_HEADER = (
    "op", "group", "size", "calls", "median", "p99", "transfer", "GB/s", "waits", "last",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A title, a table of text cells, and notes below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def lay_out_communication(communication: Communication) -> Table | None:
    """Put the cost of ops into words.

    Args:
        communication: The figures of a report.

    Returns:
        The table; None when there are no figures.
    """
    if not communication.rows:
        return None
    shown = communication.rows[:_MAX_ROWS]
    told = any(row.times_by == _INSPECTOR for row in communication.rows)
    title = "communication, by NCCL's inspector"
    if communication.span_s or not told:
        waits = f"ranks wait {communication.exposed_share:.0%} in synchronous ops"
        if all(map(_are_waits_unknown, communication.rows)):
            waits = "how long ranks wait is unknown"
        title = f"communication: in {communication.span_s:.4g} s, {waits}"
    if communication.exposed_most > communication.exposed_share:
        title += f", rank {communication.exposed_rank} {communication.exposed_most:.0%}"
    return Table(
        title,
        _HEADER,
        tuple(_lay_out_row(row) for row in shown),
        tuple(_list_notes(communication, shown)),
    )


def render_communication(communication: Communication) -> Iterator[str]:
    """Yield the lines of the table as text."""
    table = lay_out_communication(communication)
    if table is not None:
        yield from render_table(table)


def render_table(table: Table, left: int = 2) -> Iterator[str]:
    """Yield the lines of a table as text; its first columns are names, put to the left."""
    yield table.title
    lines = [table.header, *table.rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"  {'  '.join(cells).rstrip()}"
    yield from (f"  {note}" for note in table.notes)
    yield ""


def _are_waits_unknown(row: CommunicationRow) -> bool:
    """Return whether no end was seen: the share of 0 is then no measurement."""
    return row.median_ms is None and not row.exposed_share


def _lay_out_row(row: CommunicationRow) -> tuple[str, ...]:
    waits = "-" if _are_waits_unknown(row) else f"{row.exposed_share:.1%}"
    if row.async_share:
        waits = "async" if row.async_share == 1 else f"{waits}+"
    last = f"rank {row.last_rank} {row.last_share:.0%}" if row.last_rank >= 0 else "-"
    return (
        show_line(row.op),
        show_line(row.group),
        _format_size(row.bytes_from) if row.bytes_from else "-",
        str(row.calls),
        _format_figure(row.median_ms),
        _format_figure(row.p99_ms),
        _format_figure(row.transfer_ms),
        "-" if row.busbw_gbps is None else f"{row.busbw_gbps:.3g}",
        waits,
        last,
    )


def _list_notes(communication: Communication, shown: Sequence[CommunicationRow]) -> Iterator[str]:
    left = len(communication.rows) - len(shown)
    if left:
        yield f"and {left} more kinds of op: `--format json` has all"
    errors = [row.error_ms for row in communication.rows if row.error_ms is not None]
    if any(row.median_ms is not None for row in communication.rows):
        yield "times in ms; transfer: from the arrival of the last rank; GB/s: of the bus"
    if errors:
        yield f"ends are known within {_format_ms(max(errors))}"
    told = _name_ops(row for row in shown if row.times_by == _INSPECTOR)
    if told and communication.span_s:
        yield f"times of the kernels alone, by NCCL's inspector: {told}"
    if unknown := _name_ops(row for row in shown if row.median_ms is None):
        yield f"times are unknown, as no end was seen: {unknown}"
        yield "of ops on devices no op log has the end; NCCL's inspector or a trace has"
    if any(0 < row.async_share < 1 for row in shown):
        yield "+: others of these ops are asynchronous, whose waits are not known"
    if communication.clock_error_ms is not None:
        yield f"clocks of hosts are known within {_format_ms(communication.clock_error_ms)}"
    if communication.dropped:
        yield f"{communication.dropped} older ops are not in the logs any more"


def _name_ops(rows: Iterable[CommunicationRow]) -> str:
    return ", ".join(
        dict.fromkeys(f"{show_line(row.op)} of {show_line(row.group)}" for row in rows)
    )


def _format_figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= _STEP_S else f"{value:.3g}"


def _format_ms(value: float) -> str:
    return f"{value / _STEP_S:.3g} s" if value >= _STEP_S else f"{value:.3g} ms"


def _format_size(size: int) -> str:
    """Write the lower bound of a class of sizes."""
    value, unit = size, 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value // _STEP, unit + 1
    return f">={value} {_UNITS[unit]}"
