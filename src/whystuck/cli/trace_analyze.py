"""``whystuck trace analyze``: from traces to a report, and to tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
import msgspec

from whystuck.cli.group import nearest
from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress
from whystuck.cli.trace_options import trace_options
from whystuck.evidence.errors import UsageError

if TYPE_CHECKING:
    from whystuck.trace_engine.reading import ReadPlan


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--tables",
    "folder",
    metavar="DIR|URL",
    help="Write the figures behind the findings there, one file a table.",
)
@click.option(
    "--tables-format",
    "form",
    type=click.Choice(["csv", "json", "parquet"]),
    default="csv",
    show_default=True,
    help="The form of the tables.",
)
@click.option(
    "--table",
    "names",
    metavar="NAME",
    multiple=True,
    help="Write this table only; it may be one that is not made otherwise. Can be given more than "
    "once.",
)
@trace_options
@finding_options
def analyze(
    *,
    paths: tuple[str, ...],
    folder: str | None,
    form: str,
    names: tuple[str, ...],
    plan: ReadPlan,
    output: OutputOptions,
) -> int:
    """Tell from Kineto traces where the time of a job goes.

    PATH is a trace file, or a folder of them in any depth, packed or not; it may be a URL. There
    is one trace for each rank.

    Exits with 0 (nothing found), 1 (findings), 2 (a path cannot be used, or no trace can be read)
    or 3 (the traces do not decide).
    """
    from whystuck.pipeline import analyze_traces
    from whystuck.trace_engine.tables import TableFiles

    _check_paths(paths)
    _check_names(names, folder)
    plan = _with_tables(plan, names, folder)
    with show_progress("reading traces") as progress:
        if folder is None:
            report = analyze_traces(paths, plan, progress=progress)[0]
        else:
            with TableFiles(folder, form, names) as files:
                report, read = analyze_traces(paths, plan, progress=progress, sink=files)
                files.write_summary(read.summary)
    return emit_report(report, output)


def _check_paths(paths: tuple[str, ...]) -> None:
    if not all(paths):
        raise UsageError("a path is empty", hint="give trace files, or a folder of them")


def _check_names(names: tuple[str, ...], folder: str | None) -> None:
    from whystuck.pipeline import list_trace_tables

    known = list_trace_tables()
    for name in names:
        if name not in known:
            near = nearest(name, list(known))
            raise UsageError(
                f"there is no table `{name}`",
                hint=f"did you mean `{near}`?" if near else f"there are {', '.join(known)}",
            )
    if names and folder is None:
        raise UsageError("`--table` needs `--tables DIR`", hint="where to write it")


def _with_tables(plan: ReadPlan, names: tuple[str, ...], folder: str | None) -> ReadPlan:
    """Have what is to be written measured: with a folder, launches, too."""
    if folder is None:
        return plan
    from whystuck.pipeline import PUBLIC_TRACE_TABLES

    wanted = names or PUBLIC_TRACE_TABLES
    return replace(plan, options=msgspec.structs.replace(plan.options, tables=tuple(wanted)))
