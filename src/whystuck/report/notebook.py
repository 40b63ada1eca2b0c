"""What a notebook shows of a table and of a report: HTML without a page around it."""

from __future__ import annotations

from html import escape
from itertools import islice

from whystuck.evidence.table import Table
from whystuck.safe_text.escaping import show_line

_SHOWN_ROWS = 10


def render_table(name: str, table: Table) -> str:
    """Return the first rows of a table."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    shown = Table({key: column[:_SHOWN_ROWS] for key, column in table.columns.items()})
    body = "".join(
        "<tr>" + "".join(f"<td>{_show_cell(value)}</td>" for value in row) + "</tr>"
        for row in islice(shown.rows(), _SHOWN_ROWS)
    )
    count = f"{escape(show_line(name))}: {len(table)} rows"
    return f"<table><caption>{count}</caption><tr>{head}</tr>{body}</table>"


def _show_cell(value: object) -> str:
    """Return a cell as HTML; as code, in which a notebook sets no formula with a link in it."""
    text = escape(show_line(value))
    return f"<code>{text}</code>" if isinstance(value, str) else text
