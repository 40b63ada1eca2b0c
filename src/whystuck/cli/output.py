"""What the commands that give findings share: their options, and how a report leaves them."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from whystuck.cli.adding import add_options
from whystuck.cli.group import Settings
from whystuck.cli.problems import debug_option
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report, Severity, Verdict
from whystuck.guarded.own_links import follow_own_links, is_of_others
from whystuck.guarded.remote import hide_user_info, local_path, replaced, written
from whystuck.report import KEPT_WIDTH
from whystuck.report.redact import redact_report

FOUND = 1
INCONCLUSIVE = 3

# A line longer than this is hard to read, however wide the terminal is.
_MAX_WIDTH = 120

_FAILING = {
    "error": frozenset({Severity.ERROR}),
    "warning": frozenset({Severity.ERROR, Severity.WARNING}),
    "never": frozenset[Severity](),
}
# Where only warnings say so, the evidence does not decide.
_BAD_VERDICTS = frozenset({Verdict.STUCK, Verdict.CRASHED, Verdict.DIVERGED, Verdict.UNFIT})


@dataclass(frozen=True)
class OutputOptions:
    """The options that all finding commands share.

    ``url`` is where the report goes in place of ``file``, empty when nowhere. ``shows_ops`` is set
    by commands whose text shows the timeline of the ops, too.
    """

    format: str = "text"
    file: Path | None = None
    url: str = ""
    fail_on: str = "error"
    redact: bool = False
    color: str = "auto"
    shows_ops: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the report goes to a file or a URL, and not to a terminal."""
        return self.file is not None or bool(self.url)


_OUTPUT_HELP = "Write the report to FILE, or to a URL, instead of stdout."


def _make_options(output_help: str) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.option(
            "--format",
            "output_format",
            type=click.Choice(["text", "json", "html", "md"]),
            default="text",
            show_default=True,
            help="The form of the report.",
        ),
        click.option(
            "-o",
            "--output",
            "output_file",
            metavar="FILE",
            help=output_help,
        ),
        click.option(
            "--fail-on",
            type=click.Choice(["error", "warning", "never"]),
            default="error",
            show_default=True,
            help="Exit with 1 when a finding is at least this severe; "
            "3 still tells that the evidence does not decide.",
        ),
        click.option(
            "--redact",
            is_flag=True,
            help="Hide host names, user names, folders, source lines and environment values.",
        ),
        click.option(
            "--color",
            "output_color",
            type=click.Choice(["auto", "always", "never"]),
            help="As the option of the same name before the command.",
        ),
        debug_option,
    )


_Command = Callable[..., int]


def finding_options(command: _Command) -> _Command:
    """Add the shared options to a command, which gets them as the argument ``output``."""
    return _add_options(command, output_help=_OUTPUT_HELP)


def finding_options_with(output_help: str) -> Callable[[_Command], _Command]:
    """Return the decorator that adds the shared options, where ``-o`` does more than usual."""
    return functools.partial(_add_options, output_help=output_help)


def _add_options(command: _Command, *, output_help: str) -> _Command:

    @functools.wraps(command)
    def with_output(
        *args: Any,  # noqa: ANN401 - the command's own arguments
        output_format: str,
        output_file: str | None,
        fail_on: str,
        redact: bool,
        output_color: str | None,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        settings = click.get_current_context().find_object(Settings) or Settings()
        output = OutputOptions(
            format=output_format,
            file=local_path(output_file) if output_file and output_file != "-" else None,
            url=output_file if output_file and local_path(output_file) is None else "",
            fail_on=fail_on,
            redact=redact,
            color=output_color or settings.color,
        )
        return command(*args, output=output, **kwargs)

    return add_options(with_output, _make_options(output_help))


def emit_report(report: Report, output: OutputOptions) -> int:
    """Write ``report`` as the options say, and return the exit code it means."""
    if output.redact:
        report = redact_report(report)
    emit_bytes(_render(report, output), output)
    return exit_code_for(report, output.fail_on)


def emit_bytes(data: bytes, output: OutputOptions) -> None:
    """Write what a command made to the file that was asked for, or to stdout."""
    if output.url:
        _write_url(output.url, data)
    elif output.file is None:
        write_stdout(data)
    else:
        write_file(output.file, data)


def choose_color(output: OutputOptions) -> bool:
    """Decide about colour in the output: in a file only when it was asked for."""
    return output.color == "always" if output.is_kept else use_color(output.color)


def choose_width(output: OutputOptions) -> int:
    """Return the columns of the output: those of the terminal unless it is a file."""
    return KEPT_WIDTH if output.is_kept else terminal_width()


def exit_code_for(report: Report, fail_on: str = "error") -> int:
    """Return 0, 1 (findings at or above ``fail_on``) or 3 (the evidence does not decide)."""
    if any(finding.severity in _FAILING[fail_on] for finding in report.findings):
        return FOUND
    is_sure = any(finding.severity is Severity.ERROR for finding in report.findings)
    is_open = report.verdict in _BAD_VERDICTS and not is_sure
    return INCONCLUSIVE if is_open or report.verdict is Verdict.INCONCLUSIVE else 0


def write_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file in one step: a reader sees the old content or the new, never a part."""
    with opened_file(path) as stream:
        stream.writelines([data] if isinstance(data, bytes) else data)


@contextmanager
def opened_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of the old one when all of it is written.

    Links and pipes of other users are replaced, as they may lead anywhere.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        place = follow_own_links(path)
        # A pipe, or a device such as /dev/null, must not be replaced by a file.
        is_kept = place.exists() and not place.is_file() and not is_of_others(place)
        with place.open("wb") if is_kept else replaced(place) as stream:
            yield stream
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"cannot write `{path}`: {getattr(problem, 'strerror', None) or problem}",
            hint="`-o FILE` needs a folder that exists and can be written",
        ) from problem


def _write_url(url: str, data: bytes) -> None:

    try:
        with written(url) as stream:
            stream.write(data)
    except OSError as problem:
        raise UsageError(
            f"cannot write `{hide_user_info(url)}`: {problem}",
            hint="`-o URL` needs a place that can be written",
        ) from problem


def use_color(choice: str) -> bool:
    """Decide about colour on stdout: the option first, then the environment, then the terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def terminal_width() -> int:
    """Return the columns to fill: those of the terminal, or a fixed number for files and pipes."""
    if not sys.stdout.isatty():
        return KEPT_WIDTH
    return min(shutil.get_terminal_size((KEPT_WIDTH, 24)).columns, _MAX_WIDTH)


def _render(report: Report, output: OutputOptions) -> bytes:
    to_file = output.is_kept
    if output.format == "json":
        from whystuck.report.json import render_json

        return render_json(report)
    if output.format == "html":
        from whystuck.report.html import render_html

        return render_html(report).encode()
    if output.format == "md":
        from whystuck.report.markdown import render_markdown

        text = render_markdown(report)
    else:
        from whystuck.report.text import render_text

        text = render_text(
            report,
            color=choose_color(output),
            width=choose_width(output),
            ops=output.shows_ops,
        )
    return text.encode() if to_file else encode_for_stdout(text)
