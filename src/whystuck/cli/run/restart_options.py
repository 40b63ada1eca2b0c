"""The options of ``whystuck run`` that decide on restarts, and on the exit code of a failure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from whystuck.cli.adding import add_options


@dataclass(frozen=True)
class RestartOptions:
    """What was asked for; ``exit_code`` is ``child`` or ``root-cause``."""

    max_restarts: int = 0
    exit_code: str = "child"
    exit_code_map: Path | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether any of it changes what `whystuck run` does."""
        return bool(self.max_restarts or self.exit_code != "child" or self.exit_code_map)


_OPTIONS = (
    click.option(
        "--max-restarts",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Start the command again when it fails, N times at most; not after a fault of this "
        "node, and not when the same cause comes twice without progress.",
    ),
    click.option(
        "--exit-code",
        type=click.Choice(["child", "root-cause"]),
        default="child",
        show_default=True,
        help="The exit code of a job that failed: that of the command, or one of the root cause: "
        "200 hardware, 201 a process or peer was lost, 202 communication, 100 the job itself.",
    ),
    click.option(
        "--exit-code-map",
        metavar="FILE",
        help="Exit codes of your own for codes and classes of root causes, in TOML.",
    ),
)


def restart_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as ``restarts``."""

    @functools.wraps(command)
    def with_restarts(
        *args: object,
        max_restarts: int,
        exit_code: str,
        exit_code_map: str | None,
        **keywords: object,
    ) -> object:
        path = Path(exit_code_map) if exit_code_map else None
        restarts = RestartOptions(max_restarts, exit_code, path)
        return command(*args, restarts=restarts, **keywords)

    return add_options(with_restarts, _OPTIONS)
