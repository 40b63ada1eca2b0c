"""``whystuck trace diff``: from the traces of two runs to what became slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from whystuck.cli.number_range import NumberRange
from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress
from whystuck.cli.trace.options import trace_options

if TYPE_CHECKING:
    from whystuck.evidence.table import Table
    from whystuck.read.traces.plan import ReadPlan


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--threshold",
    "threshold_percent",
    type=NumberRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="How much longer a step must take in B to be a regression.",
)
@click.option(
    "--tables",
    metavar="DIR|URL",
    help="Write all differences to DIR: diff_ops.csv, diff_kernels.csv, diff_tree.csv and others.",
)
@trace_options
@finding_options
def diff(
    *,
    a: str,
    b: str,
    threshold_percent: float,
    tables: str | None,
    plan: ReadPlan,
    output: OutputOptions,
) -> int:
    """Tell from traces of two runs what became slower, and what explains it.

    A and B are each a Kineto trace, or a folder with a trace of each rank. Steps of the profiler,
    or of the optimizer, are compared, so that the runs may differ in their number; traces without
    are compared as wholes, when they hold the same work. In a test of a pipeline, a step that
    takes longer ends it with exit code 1.

    Exits with 0 (no regression), 1 (B is slower), 2 (a path cannot be used) or 3 (there is nothing
    that could be compared, or a large difference may be chance).
    """
    from whystuck.cli.trace.run_comparison import compare_runs, read_run

    with show_progress("reading traces") as progress:
        sides = [read_run(path, plan, progress) for path in (a, b)]
    found = compare_runs(sides[0], sides[1], threshold_percent)
    if tables is not None:
        write_diff_tables(tables, found.tables)
    return emit_report(found.report, output)


def write_diff_tables(folder: str, tables: dict[str, Table]) -> None:
    """Write the tables of a comparison as CSV, one file each.

    Raises:
        UsageError: The folder cannot be written.
    """
    from whystuck.cli.table_files import TableFiles
    from whystuck.cli.trace.run_comparison import PUBLIC_TABLES

    with TableFiles(folder, "csv") as files:
        for name in PUBLIC_TABLES:
            if name in tables:
                files.write_rows(name, tables[name])
