"""``whystuck logs``: from the logs of a job to the first cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from whystuck.cli.form_options import tables_format_option
from whystuck.cli.offline.diagnose import check_readable
from whystuck.cli.offline.signature_options import signatures_option
from whystuck.cli.output import (
    OutputOptions,
    emit_bytes,
    emit_report,
    exit_code_for,
    finding_options,
)
from whystuck.cli.progress import show_progress
from whystuck.cli.remote_paths import on_disk, with_stdin
from whystuck.evidence.errors import UsageError

if TYPE_CHECKING:
    from whystuck.evidence.finding import Report
    from whystuck.evidence.model import Evidence
    from whystuck.parse.logs.signatures import Signature


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="List all errors in the order in which they happened, one a line, in place of the report; "
    "as text or JSON.",
)
@click.option(
    "--tables",
    metavar="DIR",
    help="Write all errors to DIR, as errors.csv, errors.json or errors.parquet.",
)
@tables_format_option("The form of that table.")
@signatures_option
@finding_options
def logs(
    *,
    paths: tuple[str, ...],
    lists: bool,
    tables: str | None,
    tables_format: str,
    signatures: tuple[Signature, ...],
    output: OutputOptions,
) -> int:
    """Find in the logs of a job why it died, and on which rank first.

    PATH is a log or a folder of logs, of ranks, launchers, schedulers or the kernel, packed or
    not, in any mix; `-` is standard input. It may be a URL, as for `whystuck diagnose`. Only logs
    and answers of NCCL's RAS are read; `whystuck diagnose` reads other evidence too.

    Exits with 0 (nothing found), 1 (findings), 2 (a path cannot be used) or 3 (the logs do not
    decide).

    kubectl logs job/train --all-containers | whystuck logs -
    """
    if lists and output.format not in ("text", "json"):
        raise UsageError(
            f"`--list` cannot be written as {output.format}",
            hint="use `--format text` or `--format json`",
        )
    from whystuck.pipeline import Choice, diagnose_evidence, read_paths

    choice = Choice(only_logs=True, signatures=signatures)
    with with_stdin(paths, "logs") as (on_hand, cut), on_disk(on_hand) as (folders, gaps):
        for path in folders:
            _check_readable(path)
        with show_progress("reading logs") as progress:
            evidence = read_paths([Path(path) for path in folders], progress, choice)
        report = diagnose_evidence(evidence)
    report.gaps.extend([*cut, *gaps])
    if tables is not None:
        from whystuck.cli.offline.log_tables import write_log_tables

        write_log_tables(Path(tables), tables_format, evidence, report, redact=output.redact)
    if not lists:
        return emit_report(report, output)
    return _emit_list(evidence, report, output)


def _emit_list(evidence: Evidence, report: Report, output: OutputOptions) -> int:
    from whystuck.cli.offline.log_tables import list_errors, render_list

    errors = list_errors(evidence, report, redact=output.redact)
    emit_bytes(render_list(errors, output), output)
    return exit_code_for(report, output.fail_on)


def _check_readable(path: str) -> None:

    check_readable(path, hint="give a log or a folder of logs, or `-` for standard input")
