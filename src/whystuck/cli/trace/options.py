"""The options that the commands over traces share: how they are read, and measured."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from whystuck.cli.adding import add_options
from whystuck.evidence.errors import UsageError
from whystuck.evidence.traces.options import TraceOptions

_RANK_SOURCES = ("auto", "trace", "name", "order")
_OPTIONS = (
    click.option(
        "--all-steps",
        is_flag=True,
        help="Take the last profiler step in, which may be cut off.",
    ),
    click.option(
        "--comm-pattern",
        "comm_patterns",
        metavar="REGEX",
        multiple=True,
        help="Kernels whose name this finds communicate, beside those that are known to. "
        "Can be given more than once.",
    ),
    click.option(
        "--rank-from",
        type=click.Choice(_RANK_SOURCES),
        default="auto",
        show_default=True,
        help="Where the rank of a trace is told: in the trace, in its name, by the order of names; "
        "auto: in the trace, or else in its name.",
    ),
    click.option(
        "--duplicates",
        type=click.Choice(["newest", "longest"]),
        default="newest",
        show_default=True,
        help="Which of several traces of one rank counts.",
    ),
    click.option(
        "--engine",
        metavar="local|dask://HOST:PORT",
        default="local",
        show_default=True,
        help="Where files are read: in processes of this machine, or by a Dask cluster whose "
        "workers have whystuck, and see the files.",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        default="",
        help="What the processes of this machine may take together, e.g. 8G; large files are read "
        "fewer at once.  [default: 60% of what is free]",
    ),
    click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        help="How many processes of this machine.  [default: one for each core]",
    ),
    click.option(
        "--partials",
        metavar="DIR|URL",
        default="",
        help="Keep there what each file was reduced to: what is there is not read again.",
    ),
)


def trace_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the shared options to a command, which gets them as the argument ``plan``."""

    @functools.wraps(command)
    def with_plan(
        *args: Any,  # noqa: ANN401 - the command's own
        all_steps: bool,
        comm_patterns: tuple[str, ...],
        rank_from: str,
        duplicates: str,
        engine: str,
        memory: str,
        workers: int,
        partials: str,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        from whystuck.read.traces.engines import choose_engine
        from whystuck.read.traces.plan import ReadPlan

        plan = ReadPlan(
            options=_make_options(comm_patterns, all_steps=all_steps),
            engine=choose_engine(engine, memory, workers),
            partials=_make_absolute(partials),
            rank_from=rank_from,
            duplicates=duplicates,
        )
        return command(*args, plan=plan, **kwargs)

    return add_options(with_plan, _OPTIONS)


def _make_options(comm_patterns: tuple[str, ...], *, all_steps: bool) -> TraceOptions:

    for pattern in comm_patterns:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UsageError(
                f"`{pattern}` is no regular expression: {problem}",
                hint="e.g. `--comm-pattern '^my_all_reduce'`",
            ) from problem
    return TraceOptions(all_steps=all_steps, comm_patterns=comm_patterns)


def _make_absolute(place: str) -> str:
    """Name a folder so that workers that run elsewhere find it, too."""
    from whystuck.guarded.remote import local_path

    local = local_path(place) if place else None
    return place if local is None else str(local.absolute())
