"""``whystuck shell``: a shell where a rank is."""

from __future__ import annotations

import click

from whystuck.evidence.errors import UsageError
from whystuck.launch.processes.rank_shell import find_place, run_there
from whystuck.launch.running import choose_running_job
from whystuck.launch.switch.ranks import live_ranks


@click.command()
@click.option("--job", metavar="ID", help="The job, by its id or the pid of `whystuck run`.")
@click.argument("rank", type=click.IntRange(min=0))
@click.argument("command", nargs=-1, metavar="[-- COMMAND [ARG...]]")
def shell(*, job: str | None, rank: int, command: tuple[str, ...]) -> int:
    """Open a shell where a rank is: with its variables, in its folder and its namespaces.

    It works for jobs of your own that run here under `whystuck run`. `$RANK_PID` is the pid of the
    rank. With COMMAND, that is run instead of a shell.

    whystuck shell 3 -- nvidia-smi
    """
    found = choose_running_job(job)
    ranks = {one.beat.rank: one.pid for one in live_ranks(found.folder)}
    if rank not in ranks:
        here = ", ".join(map(str, sorted(ranks)[:16])) or "none"
        raise UsageError(f"rank {rank} does not run here", hint=f"ranks on this node: {here}")
    return run_there(find_place(rank, ranks[rank], found.folder), command)
