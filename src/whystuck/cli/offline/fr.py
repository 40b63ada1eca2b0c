"""``whystuck fr``: what flight-recorder dumps tell. Takes every option of torchfrtrace."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from whystuck.cli.compat.torchfrtrace import RecorderCommand, RecorderOptions, recorder_options
from whystuck.cli.offline.fr_check import check_view, describe_gaps
from whystuck.cli.output import OutputOptions, emit_bytes, emit_report, finding_options_with
from whystuck.cli.progress import show_progress
from whystuck.evidence.errors import UsageError
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import format_ranks
from whystuck.safe_text.escaping import show_line

_REPORT_FORMATS = {".md": "md", ".html": "html", ".htm": "html", ".txt": "text", ".text": "text"}
_TABLE_SUFFIXES = (".parquet", ".jsonl", ".ndjson")


@click.command(cls=RecorderCommand)
@click.argument("paths", nargs=-1, required=True, metavar="DIR...")
@recorder_options
@finding_options_with(
    "Write the recorded ops as tables to FILE.parquet, FILE.json or FILE.jsonl. With "
    "--format, or for .md, .html and .txt: write the report to FILE instead of stdout."
)
@click.pass_context
def fr(context: click.Context, asked: RecorderOptions, output: OutputOptions) -> int:
    """Tell from flight recorder dumps who waits for whom, and why.

    DIR is a folder of dumps, one file a rank, with any file names; or any evidence that `whystuck
    diagnose` reads. Beside what it finds, the report shows the ops around the place where the
    ranks part. Takes all options of torchfrtrace.

    Exits with 0 (nothing found), 1 (findings), 2 (a path cannot be used) or 3 (the dumps do not
    decide); with -j always with 0.
    """
    is_form_given = context.get_parameter_source("output_format") is ParameterSource.COMMANDLINE
    report_output, tables = plan_output(output, asked, is_form_given=is_form_given)
    _tell([f"note: {note}" for note in asked.notes])
    evidence = _read(asked)
    if asked.verbose:
        _tell_what_was_read(evidence)
    _tell([f"note: {note}" for note in check_view(evidence, asked.view)])
    if tables is not None:
        from whystuck.cli.offline.fr_tables import write_tables

        write_tables(tables, evidence)
    if asked.just_print:
        from whystuck.cli.offline.fr_table import render_table

        emit_bytes(render_table(evidence, asked.view, report_output), report_output)
        return 0

    from whystuck.pipeline import diagnose_evidence

    report = diagnose_evidence(evidence, asked.view)
    return emit_report(report, replace(report_output, shows_ops=True))


def plan_output(
    output: OutputOptions, asked: RecorderOptions, *, is_form_given: bool
) -> tuple[OutputOptions, Path | None]:
    """Decide what ``-o FILE`` means: tables, or the report.

    Args:
        output: The shared options.
        asked: The options of this command.
        is_form_given: Whether ``--format`` was given.

    Returns:
        The shared options for the report, and the file for the tables.

    Raises:
        UsageError: What to write cannot be told.
    """
    file = output.file
    if asked.just_print and output.format == "html":
        raise UsageError("`-j` has no HTML form", hint="use --format text, json or md")
    if file is None:
        return output, None
    suffix = file.suffix.lower()
    if suffix in _TABLE_SUFFIXES:
        return replace(output, file=None), file
    if is_form_given:
        return output, None
    if suffix == ".json":
        if asked.just_print:
            return replace(output, format="json"), None
        return replace(output, file=None), file
    form = _REPORT_FORMATS.get(suffix)
    if form is None or (asked.just_print and form == "html"):
        raise UsageError(
            f"what to write to `{file}` cannot be told from its name",
            hint="tables go to .parquet, .json or .jsonl, reports to .md, .html or .txt",
        )
    return replace(output, format=form), None


def _read(asked: RecorderOptions) -> Evidence:
    from whystuck.pipeline import Choice, read_paths

    paths = [_existing(path) for path in asked.paths]
    with show_progress("reading dumps") as progress:
        evidence = read_paths(paths, progress, Choice(prefix=asked.prefix))
    if asked.replica_size:
        from whystuck.diagnose.context.replicas import split_replicas

        evidence = split_replicas(evidence, asked.replica_size)
    return evidence


def _existing(path: str) -> Path:
    try:
        # Not Path(path): it reads an empty text, as of an unset shell variable, as this folder.
        os.stat(path)  # noqa: PTH116
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(
            f"cannot read `{path}`: {reason.lower()}",
            hint="give the folder that holds the dumps, one file a rank",
        ) from problem
    return Path(path)


def _tell_what_was_read(evidence: Evidence) -> None:
    table = evidence.collectives
    versions = ", ".join(sorted({dump.version for dump in table.dumps if dump.version}))
    ranks = format_ranks(dump.rank for dump in table.dumps)
    count = len({dump.rank for dump in table.dumps})
    lines = [
        f"dumps: {count} of {len(evidence.topology.ranks)} ranks ({ranks or 'none'})",
        f"format: {versions or 'unknown'}",
        f"ops: {len(table)} in {len(table.groups)} groups",
        *describe_gaps(evidence),
    ]
    _tell(lines)


def _tell(lines: Sequence[str]) -> None:

    sys.stderr.write("".join(f"{show_line(line)}\n" for line in lines))
