"""``whystuck trace``: takes Kineto traces of a job, and tells what is in them."""

from __future__ import annotations

import click

from whystuck.cli.group import CommandEntry, LazyGroup

COMMANDS = (
    CommandEntry(
        "start",
        "whystuck.cli.trace.start:start",
        "Trace a running job, without a change to it.",
    ),
    CommandEntry(
        "list",
        "whystuck.cli.trace.listing:list_processes",
        "Show the processes that can be traced.",
    ),
    CommandEntry(
        "cancel",
        "whystuck.cli.trace.listing:cancel",
        "Give up a trace that has not begun.",
    ),
    CommandEntry(
        "analyze",
        "whystuck.cli.trace.analyze:analyze",
        "Tell from Kineto traces where the time of a job goes.",
    ),
    CommandEntry(
        "diff",
        "whystuck.cli.trace.diff:diff",
        "Tell from traces of two runs what became slower, and what explains it.",
    ),
    CommandEntry(
        "merge",
        "whystuck.cli.trace.merge:merge",
        "Merge the traces of several ranks into one, to look at in Perfetto.",
    ),
    CommandEntry(
        "whatif",
        "whystuck.cli.trace.whatif:whatif",
        "Tell what a job would gain if a part of it were faster.",
    ),
)


@click.group(cls=LazyGroup, entries=COMMANDS, invoke_without_command=True)
@click.pass_context
def trace(context: click.Context) -> int:
    """Take Kineto traces of a running job, and tell from traces where its time goes.

    Traces are what `torch.profiler` writes, one file for each rank.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return 2
    return 0
