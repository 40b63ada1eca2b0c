"""``whystuck diagnose``: from evidence on disk to a report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whystuck.cli.form_options import tables_format_option
from whystuck.cli.offline.signature_options import signatures_option
from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress
from whystuck.cli.remote_paths import on_disk, with_stdin
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report

if TYPE_CHECKING:
    from whystuck.parse.logs.signatures import Signature
    from whystuck.pipeline import Choice


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--tables",
    metavar="DIR",
    help="Write what op logs hold to DIR: communication.csv, and every op as ops.csv; where there "
    "are logs, all their errors as errors.csv.",
)
@tables_format_option("The form of the tables of all ops and of all errors.")
@signatures_option
@finding_options
def diagnose(
    *,
    paths: tuple[str, ...],
    tables: str | None,
    tables_format: str,
    signatures: tuple[Signature, ...],
    output: OutputOptions,
) -> int:
    """Tell from files why a job was stuck or died.

    PATH is an evidence folder of whystuck or any part of it, or evidence as you have it: a folder
    of flight recorder dumps, py-spy or faulthandler text, worker logs, answers of NCCL's RAS, in
    any mix. It may be a URL, as for `whystuck run --evidence`; `-` is standard input. Where
    ranks have op logs, the report tells what communication cost.

    Exits with 0 (nothing found), 1 (findings), 2 (a path cannot be used) or 3 (the evidence does
    not decide).

    ncclras -v | whystuck diagnose -
    """
    from whystuck.pipeline import Choice

    choice = Choice(signatures=signatures)
    with with_stdin(paths, "diagnose") as (on_hand, cut), on_disk(on_hand) as (folders, gaps):
        for path in folders:
            check_readable(path)

        chosen = [Path(path) for path in folders]
        with show_progress("reading") as progress:
            if tables is None:
                from whystuck.pipeline import diagnose_paths

                report = diagnose_paths(chosen, progress, choice)
            else:
                folder = Path(tables)
                report = _diagnose_with_tables(
                    chosen, progress, choice, folder, tables_format, redact=output.redact
                )
    report.gaps.extend([*cut, *gaps])
    return emit_report(report, output)


def _diagnose_with_tables(
    paths: list[Path],
    progress: Callable[[int, int], None],
    choice: Choice,
    folder: Path,
    form: str,
    *,
    redact: bool,
) -> Report:
    from whystuck.cli.table_files import write_table
    from whystuck.diagnose.summaries.op_tables import make_communication_table, make_ops_table
    from whystuck.pipeline import diagnose_evidence, read_paths

    evidence = read_paths(paths, progress, choice)
    report = diagnose_evidence(evidence)
    # A table of a few kinds of ops is for people; the ops themselves are for programs.
    write_table(folder, "csv", make_communication_table(report.communication))
    write_table(folder, form, make_ops_table(evidence.ops))
    if evidence.logs.files:
        from whystuck.cli.offline.log_tables import write_log_tables

        write_log_tables(folder, form, evidence, report, redact=redact)
    return report


_HINT = "give a folder that `whystuck run` wrote, or one that holds dumps and logs"


def check_readable(path: str, hint: str = _HINT) -> None:
    """Raise UsageError for a path that is not there, or that cannot be looked at."""
    try:
        # Not Path(path): it reads an empty text, as of an unset shell variable, as this folder.
        os.stat(path)  # noqa: PTH116
    except OSError as problem:
        from whystuck.read.paths import is_archived

        if path and is_archived(Path(path)):
            return
        raise UsageError(
            f"cannot read `{path}`: {(problem.strerror or str(problem)).lower()}",
            hint=hint,
        ) from problem
    except ValueError as problem:
        raise UsageError(f"`{path}` is not a path") from problem
