"""The table of ``whystuck fr -j``: what the ranks recorded, without judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whystuck.cli.offline.fr_check import name_groups
from whystuck.cli.output import OutputOptions, choose_color, choose_width
from whystuck.cli.stdout import encode_for_stdout
from whystuck.diagnose.summaries.ops_view import View
from whystuck.diagnose.summaries.timeline import list_groups
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.model import Evidence
from whystuck.evidence.sections import Timeline
from whystuck.report.redact import redact_report


def render_table(evidence: Evidence, view: View, output: OutputOptions) -> bytes:
    """Render the ops of all groups.

    Args:
        evidence: What was read.
        view: What to show.
        output: The form.

    Returns:
        The table as text, JSON or Markdown.

    Raises:
        UsageError: Nothing is left to show.
    """
    # Programs want every group; on a screen, groups that look the same are one.
    shown = list_groups(evidence, view=replace(view, fold=output.format != "json"))
    if not shown:
        raise _nothing(evidence, view)
    if output.redact:
        shown = redact_report(Report(verdict=Verdict.HEALTHY, timeline=shown)).timeline
    return _render(shown, output)


def _render(shown: Sequence[Timeline], output: OutputOptions) -> bytes:
    if output.format == "json":
        from whystuck.report.json import render_timelines_json

        return render_timelines_json(shown)
    if output.format == "md":
        from whystuck.report.markdown import render_timelines

        return ("\n".join(render_timelines(shown)).rstrip() + "\n").encode()
    from whystuck.report.text import make_painter
    from whystuck.report.timeline import render_tables

    painter = make_painter(color=choose_color(output))
    text = "\n".join(render_tables(shown, choose_width(output), painter)).rstrip() + "\n"
    return text.encode() if output.is_kept else encode_for_stdout(text)


def _nothing(evidence: Evidence, view: View) -> UsageError:
    if not len(evidence.collectives):
        return UsageError(
            "the dumps hold no ops", hint="was the recorder on? TORCH_FR_BUFFER_SIZE sets its size"
        )
    asked = " and ".join(
        f"`{option}`"
        for option, given in (("--pg-filters", view.groups), ("--selected-ranks", view.ranks))
        if given
    )
    return UsageError(f"no op is left after {asked}", hint=name_groups(evidence.collectives.groups))
