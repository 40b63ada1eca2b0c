"""Refuses what would take far more memory than its bytes, before it is decoded."""

from __future__ import annotations

from whystuck.parse.errors import ParseError

# A decoded value takes some 60 bytes, where its text may take two. What is larger than any record
# that whystuck or torch writes is refused: a full ring of 20,000 entries has 2,700,000 values.
MAX_VALUES = 4_000_000
_STARTS = (b",", b"[", b"{", b":")
# A container of a pickled dump takes 370 bytes while it is read; that ring has 320,000.
_MAX_CONTAINERS = 800_000
_BYTES_PER_CONTAINER = 370
_CONTAINERS = (b"}", b"]")
# A smaller pickle cannot hold so many that it matters, and counting takes time.
_LIGHT_BYTES = 4 << 20


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


def weigh_pickle(data: bytes) -> int:
    """Estimate the memory that it takes to read a pickled dump.

    Args:
        data: The pickle.

    Returns:
        Bytes; an upper limit, as parts of texts and numbers may look like containers.

    Raises:
        ParseError: It is too much for any dump.
    """
    if len(data) < _LIGHT_BYTES:
        return len(data)
    containers = sum(data.count(one) for one in _CONTAINERS)
    if containers > _MAX_CONTAINERS:
        raise ParseError(f"the dump holds more than {_MAX_CONTAINERS} containers")
    return 2 * len(data) + _BYTES_PER_CONTAINER * containers
