"""What every console script does around its work: streams, problems told in words, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from whystuck.cli.problems import exit_code_of, want_traceback
from whystuck.cli.stdout import flush_streams, open_missing_streams


def run_command(command: click.Command, name: str, argv: Sequence[str] | None) -> int:
    """Run a command of click and return its exit code; nothing is raised for a user's mistake."""
    return run_script(
        lambda arguments: command.main(arguments, prog_name=name, standalone_mode=False), argv
    )


def run_script(work: Callable[[list[str]], object], argv: Sequence[str] | None) -> int:
    """Do the work of a console script.

    Args:
        work: Is given the arguments, and returns the exit code; anything but a number is 0.
        argv: The arguments, None for those of this process.

    Returns:
        The exit code, also of a problem; 70 when whystuck itself failed.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    open_missing_streams()
    want_traceback(is_wanted=False)
    try:
        result = work(arguments)
        code = result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt) as problem:
        known = exit_code_of(problem)
        if known is None:
            raise
        code = known
    return flush_streams(code)
