"""The one error that parsers raise."""

from __future__ import annotations

from whystuck.evidence.errors import WhystuckError


class ParseError(WhystuckError):
    """The bytes are not what their name or first bytes promise."""
