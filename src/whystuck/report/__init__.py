"""Turns a report into text, JSON, HTML or Markdown. Nothing here reads or writes files."""

from __future__ import annotations

from whystuck.evidence.finding import Report

# The width of reports that are kept: most terminals, mail and CI logs show it without wrapping.
KEPT_WIDTH = 95


def render_all(report: Report) -> dict[str, bytes]:
    """Return the three files of a kept report: file name -> content."""
    from whystuck.report.html import render_html
    from whystuck.report.json import render_json
    from whystuck.report.text import render_text

    return {
        "report.json": render_json(report),
        "report.txt": render_text(report, color=False, width=KEPT_WIDTH).encode(),
        "report.html": render_html(report).encode(),
    }


def render_terminal(report: Report, *, color: bool) -> str:
    """Render a report for a terminal that shows a job's output too.

    Args:
        report: The report.
        color: Whether the terminal wants colours.

    Returns:
        The text of ``report.txt``, with colours when wanted.
    """
    from whystuck.report.text import render_text

    return render_text(report, color=color, width=KEPT_WIDTH)
