"""The options that the commands over traces share: how they are read, and measured."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from whystuck.evidence.errors import UsageError

if TYPE_CHECKING:
    from whystuck.trace_engine.reading import ReadPlan

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
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        plan = _make_plan(
            all_steps=all_steps,
            comm_patterns=comm_patterns,
            rank_from=rank_from,
            duplicates=duplicates,
        )
        return command(*args, plan=plan, **kwargs)

    return functools.reduce(lambda made, add: add(made), reversed(_OPTIONS), with_plan)


def _make_plan(
    *, all_steps: bool, comm_patterns: tuple[str, ...], rank_from: str, duplicates: str
) -> ReadPlan:
    from whystuck.trace_engine.reading import ReadPlan
    from whystuck.tracing.options import TraceOptions

    for pattern in comm_patterns:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UsageError(
                f"`{pattern}` is no regular expression: {problem}",
                hint="e.g. `--comm-pattern '^my_all_reduce'`",
            ) from problem
    options = TraceOptions(all_steps=all_steps, comm_patterns=comm_patterns)
    return ReadPlan(options=options, rank_from=rank_from, duplicates=duplicates)
