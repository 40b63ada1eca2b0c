"""The command line. Each command is a small file of its own, loaded when it is used."""

from __future__ import annotations

from whystuck.cli import early  # noqa: F401 - for what it does, before click is imported

# isort: split

from collections.abc import Sequence

import click

from whystuck import __version__
from whystuck.cli.group import CommandEntry, LazyGroup, Settings
from whystuck.cli.problems import debug_option
from whystuck.cli.script import run_command

# In the order of the help: before and around a job, then after it, then about the tool itself.
COMMANDS = (
    CommandEntry(
        "check", "whystuck.cli.run.check:check", "Check whether this node is fit to train."
    ),
    CommandEntry(
        "run", "whystuck.cli.run.run:run", "Start a job, watch it, and tell why it stops."
    ),
    CommandEntry(
        "snapshot", "whystuck.cli.run.snapshot:snapshot", "Tell why a job that runs now is stuck."
    ),
    CommandEntry(
        "release",
        "whystuck.cli.run.release:release",
        "Let a job go on to its end whose scene is kept.",
    ),
    CommandEntry(
        "shell",
        "whystuck.cli.run.shell:shell",
        "Open a shell where a rank is: with its variables, in its folder and its namespaces.",
    ),
    CommandEntry(
        "switch", "whystuck.cli.run.switch:switch", "Change what a running job records, or show it."
    ),
    CommandEntry(
        "diagnose",
        "whystuck.cli.offline.diagnose:diagnose",
        "Tell from files why a job was stuck or died.",
    ),
    CommandEntry(
        "logs",
        "whystuck.cli.offline.logs:logs",
        "Find in the logs of a job why it died, and on which rank first.",
    ),
    CommandEntry(
        "fr",
        "whystuck.cli.offline.fr:fr",
        "Tell from flight recorder dumps who waits for whom, and why.",
    ),
    CommandEntry(
        "trace",
        "whystuck.cli.trace.commands:trace",
        "Take Kineto traces of a running job, and tell from traces where its time goes.",
    ),
    CommandEntry(
        "agent",
        "whystuck.cli.agent.command:agent",
        "Trace jobs of this node on demand, and read its metrics.",
    ),
    CommandEntry(
        "explain",
        "whystuck.cli.offline.explain:explain",
        "Explain a finding, e.g. H102, or a line in a log, e.g. xid.79.",
    ),
    CommandEntry(
        "pack",
        "whystuck.cli.offline.pack:pack",
        "Put what tells of a job into one archive that can be given away.",
    ),
    CommandEntry(
        "init",
        "whystuck.cli.run.init:init",
        "Write a start script for a shell, for Slurm, or for Kubernetes.",
    ),
    CommandEntry(
        "doctor", "whystuck.cli.doctor:doctor", "Check what whystuck can see and do here."
    ),
    CommandEntry(
        "schema", "whystuck.cli.offline.schema:schema", "Print the JSON schema.", hidden=True
    ),
)


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="whystuck", message="%(prog)s %(version)s")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the output; auto means on a terminal, and obeys NO_COLOR and FORCE_COLOR.",
)
@debug_option
@click.pass_context
def whystuck(context: click.Context, color: str) -> int:
    """Tell why a distributed PyTorch job is stuck, slow or dead.

    whystuck run -- torchrun --nproc-per-node 8 train.py
    """
    context.obj = Settings(color=color)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return 2
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing is raised for a user's mistake."""
    return run_command(whystuck, "whystuck", argv)
