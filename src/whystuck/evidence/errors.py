"""Errors that a user can do something about.

``WhystuckError``
    ├── ``UsageError``      wrong arguments, or a path that is missing or unreadable as a whole
    └── ``StartError``      whystuck itself could not start
"""

from __future__ import annotations


class WhystuckError(Exception):
    """One clear sentence, and a hint that says what to try next."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep ``message`` (one sentence, no period) and ``hint``."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(WhystuckError):
    """The arguments, or the path given, cannot be used."""


class StartError(WhystuckError):
    """whystuck could not start its work, for a reason outside the command."""

    exit_code = 125
