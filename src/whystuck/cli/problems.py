"""How problems end a command: one sentence and a ``hint:`` on stderr, and an exit code."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass

import click

from whystuck.cli.stdout import silence_stdout
from whystuck.evidence.errors import WhystuckError

INTERRUPTED = 130
# Of BSD's sysexits: an internal error.
BROKEN = 70
# What a shell shows for a program that a closed pipe ended.
PIPE_CLOSED = 141


@dataclass
class _Wanted:
    """What this process shall print of problems."""

    traceback: bool = False


_wanted = _Wanted()


def want_traceback(*, is_wanted: bool) -> None:
    """Choose whether a bug of whystuck ends a command with a traceback, or with one line."""
    _wanted.traceback = is_wanted


def _take_debug(_context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        want_traceback(is_wanted=True)


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_take_debug,
    help="Print the traceback where whystuck itself fails.",
)


def exit_code_of(problem: BaseException) -> int | None:
    """Tell the user about ``problem`` and return the exit code; ``None`` to have it raised."""
    if isinstance(problem, WhystuckError):
        _print(problem.message, problem.hint)
        return problem.exit_code
    if isinstance(problem, click.exceptions.Exit):
        return problem.exit_code
    if isinstance(problem, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED
    if isinstance(problem, click.ClickException):
        _print(_first_line(problem.format_message()), _hint_of(problem))
        return problem.exit_code
    if isinstance(problem, BrokenPipeError):
        silence_stdout()
        return PIPE_CLOSED
    return _tell_bug(problem) if isinstance(problem, Exception) else None


def _tell_bug(problem: Exception) -> int:
    from whystuck.diagnose.failures import describe_problem
    from whystuck.safe_text.escaping import escape_lines
    from whystuck.safe_text.secrets import hide_secrets

    if _wanted.traceback:
        text = "".join(traceback.format_exception(problem))
        sys.stderr.write(escape_lines(hide_secrets(text)))
    _print(
        f"whystuck itself failed: {describe_problem(problem)}",
        "report this as a bug of whystuck; `--debug` prints the traceback",
    )
    return BROKEN


def _print(message: str, hint: str) -> None:
    # The message may quote a path or an option as it was typed.
    from whystuck.safe_text.escaping import show_line

    sys.stderr.write(f"error: {show_line(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {show_line(hint)}\n")


def _first_line(message: str) -> str:
    """Return click's message in our form: lower case, and no period."""
    text = " ".join(message.split()).removesuffix(".")
    return text[:1].lower() + text[1:]


def _hint_of(problem: click.ClickException) -> str:
    hint = getattr(problem, "hint", "")
    if hint:
        return str(hint)
    context = getattr(problem, "ctx", None)
    return f"`{context.command_path} --help` shows how it is used" if context else ""
