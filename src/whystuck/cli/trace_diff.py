"""``whystuck trace diff``: from the traces of two runs to what became slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress

if TYPE_CHECKING:
    from whystuck.evidence.table import Table


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--threshold",
    "threshold_percent",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="How much longer a step must take in B to be a regression.",
)
@click.option(
    "--tables",
    metavar="DIR",
    help="Write all differences to DIR: diff_ops.csv, diff_kernels.csv, diff_tree.csv and others.",
)
@click.option("--all-steps", is_flag=True, help="Compare the last profiler step, too.")
@finding_options
def diff(
    *,
    a: str,
    b: str,
    threshold_percent: float,
    tables: str | None,
    all_steps: bool,
    output: OutputOptions,
) -> int:
    """Tell from traces of two runs what became slower, and what explains it.

    A and B are each a Kineto trace, or a folder with a trace of each rank. Steps are compared, so
    that the runs may differ in their number; a trace without profiler steps is compared as a
    whole. In a test of a pipeline, a step that takes longer ends it with exit code 1.

    Exits with 0 (no regression), 1 (B is slower), 2 (a path cannot be used) or 3 (there is nothing
    that could be compared).
    """
    from whystuck.trace_diffs import compare_runs, read_run
    from whystuck.tracing.options import TraceOptions

    options = TraceOptions(all_steps=all_steps)
    with show_progress("reading traces") as progress:
        sides = [read_run(path, options, progress) for path in (a, b)]
    found = compare_runs(sides[0], sides[1], threshold_percent)
    if tables is not None:
        write_diff_tables(Path(tables), found.tables)
    return emit_report(found.report, output)


def write_diff_tables(folder: Path, tables: dict[str, Table]) -> None:
    """Write the tables of a comparison as CSV, one file each.

    Raises:
        UsageError: The folder cannot be written.
    """
    from whystuck.cli.op_tables import write_table
    from whystuck.diagnose.recorded import Table as NamedTable
    from whystuck.trace_diffs import PUBLIC_TABLES

    for name in PUBLIC_TABLES:
        table = tables.get(name)
        if table is not None and table.columns:
            write_table(folder, "csv", NamedTable(name, dict(table.columns)))
