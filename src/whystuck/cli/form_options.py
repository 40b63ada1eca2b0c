"""The options for the form of an output that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_Decorator = Callable[[Any], Any]


def format_option(help_text: str, name: str = "output_format") -> _Decorator:
    """Add ``--format``, text or JSON."""
    return _choice("--format", name, ["text", "json"], help_text)


def tables_format_option(help_text: str, name: str = "tables_format") -> _Decorator:
    """Add ``--tables-format``, that of files."""
    return _choice("--tables-format", name, ["csv", "json", "parquet"], help_text)


def _choice(option: str, name: str, forms: list[str], help_text: str) -> _Decorator:
    """Add the choice of a form, the first one when left out."""
    return click.option(
        option, name, type=click.Choice(forms), default=forms[0], show_default=True, help=help_text
    )
