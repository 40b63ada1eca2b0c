"""``whystuck trace analyze``: from traces to a report, and to tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
import msgspec

from whystuck.cli.form_options import tables_format_option
from whystuck.cli.group import nearest
from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress
from whystuck.cli.trace.options import trace_options
from whystuck.evidence.errors import UsageError
from whystuck.guarded.remote import hide_user_info
from whystuck.safe_text.escaping import show_line

if TYPE_CHECKING:
    from whystuck.read.traces.plan import ReadPlan


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--tables",
    "folder",
    metavar="DIR|URL",
    help="Write the figures behind the findings there, one file a table.",
)
@tables_format_option("The form of the tables.", "form")
@click.option(
    "--table",
    "names",
    metavar="NAME",
    multiple=True,
    help="Write this table only; it may be one that is not made otherwise. Can be given more than "
    "once.",
)
@click.option(
    "--counters",
    metavar="FILE|URL",
    help="Write the trace of one rank there, with tracks of queue lengths, memory bandwidth, use "
    "of devices and allocated memory; packed when its name ends in .gz.",
)
@click.option(
    "--map-only",
    is_flag=True,
    help="Only make the partials of `--partials`, as on a training node, and judge nothing.",
)
@trace_options
@finding_options
def analyze(
    *,
    paths: tuple[str, ...],
    folder: str | None,
    form: str,
    names: tuple[str, ...],
    counters: str | None,
    map_only: bool,
    plan: ReadPlan,
    output: OutputOptions,
) -> int:
    """Tell from Kineto traces where the time of a job goes.

    PATH is a trace file, or a folder of them in any depth, packed or not, or of the partials that
    `--partials` left elsewhere; it may be a URL. There is one trace for each rank.

    Exits with 0 (nothing found), 1 (findings), 2 (a path cannot be used, or no trace can be read)
    or 3 (the traces do not decide).
    """
    from whystuck.cli.table_files import TableFiles
    from whystuck.pipeline import analyze_traces

    _check_paths(paths)
    _check_names(names, is_written=folder is not None or map_only)
    plan = _with_tables(plan, names, is_wanted=folder is not None or bool(plan.partials))
    if map_only:
        return _map_only(paths, plan)
    with show_progress("reading traces") as progress:
        if folder is None:
            report = analyze_traces(paths, plan, progress=progress)[0]
        else:
            with TableFiles(folder, form, names) as files:
                report, read = analyze_traces(paths, plan, progress=progress, sink=files)
                files.write_summary(read.summary)
    if counters is not None:
        from whystuck.read.traces.overlay import write_counters

        write_counters(paths, counters, plan.options)
    return emit_report(report, output)


def _check_paths(paths: tuple[str, ...]) -> None:
    if not all(paths):
        raise UsageError("a path is empty", hint="give trace files, or a folder of them")


def _check_names(names: tuple[str, ...], *, is_written: bool) -> None:
    from whystuck.pipeline import list_trace_tables

    known = list_trace_tables()
    for name in names:
        if name not in known:
            near = nearest(name, list(known))
            raise UsageError(
                f"there is no table `{name}`",
                hint=f"did you mean `{near}`?" if near else f"there are {', '.join(known)}",
            )
    if names and not is_written:
        raise UsageError("`--table` needs `--tables DIR`", hint="where to write it")


def _map_only(paths: tuple[str, ...], plan: ReadPlan) -> int:
    from whystuck.pipeline import map_traces

    with show_progress("reading traces") as progress:
        read = map_traces(paths, plan, progress=progress)
    for gap in read.gaps:
        click.echo(f"note: {show_line(gap.reason)}", err=True)
    made = read.files - read.kept
    kept = f", {read.kept} were there" if read.kept else ""
    click.echo(f"{made} partials made{kept}: {show_line(hide_user_info(plan.partials))}", err=True)
    return 0


def _with_tables(plan: ReadPlan, names: tuple[str, ...], *, is_wanted: bool) -> ReadPlan:
    """Have what is to be written, now or from partials, measured: launches, too."""
    if not is_wanted:
        return plan
    from whystuck.pipeline import list_needed_tables, list_public_tables

    names = (*names, *list_needed_tables(names))
    wanted = dict.fromkeys((*names, *(list_public_tables() if plan.partials or not names else ())))
    return replace(plan, options=msgspec.structs.replace(plan.options, tables=tuple(wanted)))
