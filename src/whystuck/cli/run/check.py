"""``whystuck check``: is this node fit to train?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whystuck.cli.output import OutputOptions, emit_report, finding_options
from whystuck.cli.progress import show_progress
from whystuck.cli.run.node_options import node_options
from whystuck.cli.stdout import encode_for_stdout, write_stdout

if TYPE_CHECKING:
    from whystuck.check.nodes.place import MeetingPlace


@click.command()
@click.option(
    "--only",
    metavar="NAME,...",
    multiple=True,
    help="Make these checks only; `--list` shows all names.",
)
@click.option(
    "--disk",
    "disks",
    metavar="PATH",
    multiple=True,
    help="A path that the job reads or writes; may be repeated.  "
    "[default: the working directory and the one for temporary files]",
)
@click.option(
    "--deep",
    "is_deep",
    is_flag=True,
    help="Look for minutes: products for a while, all-reduce at many sizes, and a small training. "
    "It ends with whether hardware or code is to be looked at.",
)
@click.option("--policy", metavar="FILE", help="Thresholds of your own, in TOML.")
@click.option("--show-policy", is_flag=True, help="Print our thresholds and their sources.")
@click.option("--list", "is_list", is_flag=True, help="Print the names of all checks.")
@node_options
@finding_options
def check(
    *,
    only: tuple[str, ...],
    disks: tuple[str, ...],
    is_deep: bool,
    policy: str | None,
    show_policy: bool,
    is_list: bool,
    meeting: MeetingPlace | None,
    output: OutputOptions,
) -> int:
    """Check whether this node is fit to train.

    Each check runs in a process of its own with a deadline: a dead file server or device never
    hangs the others. What is written to disks is removed again. Start it as the job is started: it
    has the same limits, cgroup and variables then, and uses the `python` that is found on PATH.

    With `--coordinator`, started on each node of a job, the nodes are compared, and pairs of them
    exchange data: it tells which node or link is slow or broken. A node that does not come leaves
    the check incomplete.

    Exits with 0 (fit), 1 (an error was found), 2 (wrong usage) or 3 (warnings only, or a check is
    incomplete).

    whystuck check --disk /data --disk /checkpoints
    """
    from whystuck.check.checks import choose_checks, choose_disks, list_names, make_context
    from whystuck.check.policy import read_policy, read_policy_text
    from whystuck.check.report import make_report
    from whystuck.check.runner import run_checks

    if show_policy or is_list:
        text = read_policy_text() if show_policy else "\n".join(list_names()) + "\n"
        write_stdout(encode_for_stdout(text))
        return 0
    thresholds = read_policy(Path(policy) if policy else None)
    names = [name for text in only for name in text.split(",") if name]
    chosen = choose_checks(
        names or thresholds.checks, is_deep=is_deep, is_together=meeting is not None
    )
    context = make_context(thresholds, choose_disks(disks), is_deep=is_deep, meeting=meeting)
    begun_s = time.monotonic()
    with show_progress("checking") as progress:
        results = run_checks(chosen, context, progress)
    report = make_report(results, time.monotonic() - begun_s, is_deep=is_deep)
    code = emit_report(report, output)
    if is_deep:
        click.echo(f"deep check: {report.context['sentence']}", err=True)
    return code
