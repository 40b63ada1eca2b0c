"""Where the entries of a pickled dump begin, and which keys they have, in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_ONE_BYTE_MEMO = 256
_FIRST_ENTRY_BYTES = 65536
_ENTRIES = b"X\x07\x00\x00\x00entries"
_LIST_START = re.compile(rb"(?s)(?:q.|r.{4})?\](?:q.|r.{4})?\(")
_MEMO_PUT = re.compile(rb"(?s)q(.)|r(.{4})")
ROLES = {
    "record_id": "number",
    "pg_id": "number",
    "collective_seq_id": "number",
    "p2p_seq_id": "number",
    "time_created_ns": "number",
    "time_discovered_started_ns": "number",
    "time_discovered_completed_ns": "number",
    "timeout_ms": "number",
    "retired": "flag",
    "is_p2p": "flag",
    "frames": "site",
    "process_group": "group",
    "thread_name": "skip",
    "thread_id": "skip",
    "op_id": "skip",
    "duration_ms": "optional",
    "profiling_name": "form",
    "input_sizes": "form",
    "input_dtypes": "form",
    "output_sizes": "form",
    "output_dtypes": "form",
    "state": "state",
}
NAMES = {
    role: tuple(name for name, of in ROLES.items() if of == role) for role in ("number", "flag")
}
_NOT_ALWAYS = ("duration_ms", "thread_name", "thread_id", "frames")
_TEXTS = {name: b"X" + len(name).to_bytes(4, "little") + name.encode() for name in ROLES}


class GiveUpError(Exception):
    """The dump is not laid out as torch does it."""


@dataclass(frozen=True)
class Key:
    """A key of the entries, and its number in the memo of the pickle."""

    name: str
    memo: int

    @cached_property
    def token(self) -> bytes:
        """The bytes by which the pickle speaks of it."""
        if self.memo < _ONE_BYTE_MEMO:
            return b"h" + bytes([self.memo])
        return b"j" + self.memo.to_bytes(4, "little")


def find_first_entry(data: bytes) -> int:
    """Tell where the first entry of a pickled dump begins."""
    position = data.find(_ENTRIES)
    match = _LIST_START.match(data, position + len(_ENTRIES)) if position >= 0 else None
    if match is None or data[match.end() : match.end() + 1] != b"}":
        raise GiveUpError
    return match.end()


def read_keys(data: bytes, first: int) -> tuple[Key, ...]:
    """Find the keys in the first entry, in their order, and their numbers in the memo.

    Args:
        data: The pickle.
        first: Where its first entry begins.

    Returns:
        The keys.

    Raises:
        GiveUpError: A key is missing.
    """
    found = []
    for name, text in _TEXTS.items():
        place = data.find(text, first, first + _FIRST_ENTRY_BYTES)
        match = _MEMO_PUT.match(data, place + len(text)) if place >= 0 else None
        if match is not None:
            found.append((place, name, int.from_bytes(match[1] or match[2], "little")))
        elif place >= 0 or name not in _NOT_ALWAYS:
            raise GiveUpError
    return tuple(Key(name, memo) for _place, name, memo in sorted(found))
