"""Refuses JSON that would take far more memory than its text, before it is decoded."""

from __future__ import annotations

from whystuck.parse.errors import ParseError

# A decoded value takes some 60 bytes, where its text may take two. What is larger than any record
# that whystuck or torch writes is refused: a full ring of 20,000 entries has 2,000,000 values.
MAX_VALUES = 4_000_000
_STARTS = (b",", b"[", b"{", b":")


def check_json(data: bytes, most: int = MAX_VALUES) -> None:
    """Look at a text of JSON before it is decoded.

    Args:
        data: The text.
        most: How many values it may hold. What looks like one within a text counts.

    Raises:
        ParseError: It holds more.
    """
    if len(data) // 2 > most and sum(data.count(one) for one in _STARTS) > most:
        raise ParseError(f"the JSON holds more than {most} values")
