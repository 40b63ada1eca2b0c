"""``whystuck snapshot``: a look at a job that runs already."""

from __future__ import annotations

import click

from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.remote_paths import choose_place


@click.command()
@click.option(
    "--pid",
    "pids",
    metavar="PID",
    type=click.IntRange(min=1),
    multiple=True,
    help="A rank, or the launcher of the job; may be repeated.  [default: every rank found]",
)
@click.option(
    "--evidence",
    metavar="DIR|URL",
    help="Where the evidence goes; to a URL it is copied.  "
    "[default: ./whystuck/<UTC time>-<job id or pid>]",
)
@finding_options
def snapshot(*, pids: tuple[int, ...], evidence: str | None, output: OutputOptions) -> int:
    """Tell why a job that runs now is stuck.

    The job needs no preparation: its ranks are found by their environment, their parent, or
    their open sockets, and their stacks and process state are taken without pausing them.

    whystuck snapshot
    """
    from whystuck.launch.snapshot import take_snapshot

    local, url = choose_place(evidence)
    report, folder = take_snapshot(
        pids, local, url, lambda text: click.echo(text, nl=False, err=True)
    )
    code = emit_report(report, output)
    click.echo(f"evidence: {folder}", err=True)
    return code
