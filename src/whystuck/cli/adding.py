"""Giving a command the options that it shares with others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Command = TypeVar("_Command", bound=Callable[..., Any])


def add_options(command: _Command, options: Sequence[Callable[[Any], Any]]) -> _Command:
    """Return a command with options, which its help shows in their order."""
    # click shows them in the reverse of the order in which they are added
    return functools.reduce(lambda made, add: add(made), reversed(options), command)
