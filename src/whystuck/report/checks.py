"""The table of checks of a node, in the same words for every format."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from whystuck.evidence.nodes.checks import CheckRow
from whystuck.report.communication import Table
from whystuck.report.figures import format_duration, format_measure
from whystuck.safe_text.escaping import show_line

_HEADER = ("check", "outcome", "time", "what was seen")
_CELL_CHARS = 400


def lay_out_checks(checks: Sequence[CheckRow]) -> Table | None:
    """Put checks into words: a line for each, with all that it saw.

    Args:
        checks: The rows of a report.

    Returns:
        The table; None where there are none.
    """
    if not checks:
        return None
    rows = tuple(
        (
            show_line(f"{row.name} {row.subject}".rstrip()),
            str(row.outcome.value),
            _format_time(row.took_s),
            show_line(describe_check(row), _CELL_CHARS),
        )
        for row in checks
    )
    return Table("checks:", _HEADER, rows, ())


def describe_check(row: CheckRow) -> str:
    """Write what a check saw, on one line."""
    parts = [row.reason] if row.reason else []
    parts += [f"{name}: {text}" for name, text in row.facts.items() if text]
    parts += [format_measure(name, round(value, 3)) for name, value in row.figures.items()]
    return " · ".join(parts)


def _format_time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else format_duration(seconds)


def render_checks(checks: Sequence[CheckRow], width: int) -> Iterator[str]:
    """Yield the lines of the table as text; what was seen is wrapped."""
    table = lay_out_checks(checks)
    if table is None:
        return
    names = max(len(row[0]) for row in table.rows)
    for name, outcome, took, seen in table.rows:
        head = f"  {outcome:<10}  {name:<{names}}  {took:>6}"
        lines = textwrap.wrap(seen, max(width - 8, 40), break_long_words=False)
        yield head.rstrip()
        yield from (f"        {line}" for line in lines)
    yield ""
