"""The option for a table of known log lines of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from whystuck.parse.logs.signatures import Signature

_OPTION = click.option(
    "--signatures",
    "signature_file",
    metavar="FILE",
    envvar="WHYSTUCK_SIGNATURES",
    show_envvar=True,
    help="A table of known log lines of your own, CSV or TOML, that goes over the one of whystuck.",
)


def signatures_option(command: Callable[..., int]) -> Callable[..., int]:
    """Add the option to a command, which gets the table as the argument ``signatures``.

    It is empty when there is no table of one's own.
    """

    @functools.wraps(command)
    def with_signatures(
        *args: Any,  # noqa: ANN401 - the command's own
        signature_file: str | None,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        return command(*args, signatures=_read(signature_file), **kwargs)

    return _OPTION(with_signatures)


def _read(file: str | None) -> tuple[Signature, ...]:
    if not file:
        return ()
    from whystuck.pipeline import read_signatures

    return read_signatures(Path(file))
