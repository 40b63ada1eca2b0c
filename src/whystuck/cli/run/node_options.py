"""The options by which nodes meet, of every command that has nodes do something together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")


def node_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options; the command gets a ``meeting``, None where this node is alone."""

    @click.option(
        "--coordinator",
        metavar="HOST[:PORT]",
        help="The node with rank 0, where all nodes of the job meet: for checks, and to decide "
        "together on restarts, at the port before it.  [default port: 9601]",
    )
    @click.option(
        "--nnodes",
        metavar="N",
        type=int,
        help="With `--coordinator`, how many nodes.  [default: as torchrun or Slurm say]",
    )
    @click.option(
        "--node-rank",
        metavar="R",
        type=int,
        help="With `--coordinator`, which of them this is, from 0.  "
        "[default: as torchrun or Slurm say]",
    )
    @functools.wraps(command)
    def with_meeting(
        *args: object,
        coordinator: str | None,
        nnodes: int | None,
        node_rank: int | None,
        **options: object,
    ) -> R:
        from whystuck.check.nodes.place import find_place

        meeting = find_place(coordinator, nnodes, node_rank)
        return command(*args, meeting=meeting, **options)

    return with_meeting
