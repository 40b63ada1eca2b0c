"""How problems end a command: one sentence and a ``hint:`` on stderr, and an exit code."""

from __future__ import annotations

import sys

import click

from whystuck.cli.stdout import silence_stdout
from whystuck.evidence.errors import WhystuckError

INTERRUPTED = 130
# What a shell shows for a program that a closed pipe ended.
PIPE_CLOSED = 141


def exit_code_of(problem: BaseException) -> int | None:
    """Tell the user about ``problem`` and return the exit code; ``None`` when it is a bug."""
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
    return None


def _print(message: str, hint: str) -> None:
    # The message may quote a path or an option as it was typed.
    from whystuck.report.clean import clean_line

    sys.stderr.write(f"error: {clean_line(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {clean_line(hint)}\n")


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
