"""Reads entries that are alike byte by byte, but for their numbers: the fast lane of `pickle_scan`.

Ops that are issued again and again are written with the same bytes, in which only times, counters
and numbers of the memo differ. One entry of each such layout is a mold: it is taken apart once, and
all others are compared with it, and their numbers read, in a few steps of numpy. Numbers by which
they call for something in the memo, such as a shape, tell the kinds of entries apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.collectives import IntColumn
from whystuck.parse.pickle_lanes import Key

Places = NDArray[np.intp]
Matrix = NDArray[np.uint8]

_WORD = 8
_MAX_ENTRY_BYTES = 4096
# More kinds than this, or fewer alike than that, are read faster lane by lane.
_MAX_MOLDS = 40
_MIN_ALIKE = 4
_MAX_KNOWN = 4096
_MAX_FAILURES = 8
_UNREAD = ("skip", "optional")
_DICT, _MARK, _END = ord("}"), ord("("), ord("u")
_PUT, _LONG_GET = ord("r"), ord("j")
_NONE, _LONG1, _TEXT = ord("N"), 0x8A, ord("X")
_FLAGS = {0x88: True, 0x89: False}
_NUMBER_TYPES = {ord("K"): "u1", ord("M"): "<u2", ord("J"): "<i4"}
# How many bytes follow an opcode; texts and long numbers tell their length themselves.
_PAYLOAD = dict.fromkeys(b"N\x88\x89}])(ate\x85\x86\x87", 0) | {
    **dict.fromkeys(b"Kh", 1),
    ord("M"): 2,
    **dict.fromkeys(b"Jjr", 4),
    ord("G"): 8,
}
_LONG_BYTES = 8
_CALLS = frozenset(b"hj")
# Odd numbers without a pattern: sums of their products tell different calls apart.
_FACTORS: NDArray[np.uint64] = np.random.default_rng(1).integers(
    1, 2**63, _MAX_ENTRY_BYTES, np.uint64
) | np.uint64(1)
_VARYING = frozenset(b"KMJG\x8a")


class _NoMoldError(Exception):
    """An entry cannot serve as a mold."""


@dataclass(frozen=True)
class Mold:
    """What entries of one kind have in common.

    ``value`` and ``mask`` are the bytes that must be the same, as one large number each, and as
    words. ``calls`` are the offsets of the bytes that call for something in the memo, ``factors``
    and ``salt`` make one number of them, the same for entries of one kind in all layouts.
    ``numbers`` gives the offset and the numpy type of each number that varies, ``constants`` the
    others.
    """

    length: int
    value: int
    mask: int
    words: NDArray[np.uint64]
    mask_words: NDArray[np.uint64]
    calls: Places
    factors: NDArray[np.uint64]
    salt: np.uint64
    numbers: tuple[tuple[str, int, str], ...]
    constants: tuple[tuple[str, int], ...]
    flags: tuple[tuple[str, bool], ...]


@dataclass
class KnownMolds:
    """Molds of dumps that were read before: those of one job are much alike."""

    by_keys: dict[tuple[Key, ...], dict[int, list[Mold]]] = field(default_factory=dict)
    count: int = 0

    def choose(self, keys: Sequence[Key]) -> dict[int, list[Mold]]:
        """Return the molds of entries with these keys, by the length of the entry."""
        if self.count > _MAX_KNOWN:
            self.by_keys.clear()
            self.count = 0
        return self.by_keys.setdefault(tuple(keys), {})


@dataclass(frozen=True)
class Cast:
    """Entries that fit a mold: their places, numbers, kinds, and the first that the memo gave."""

    rows: Places
    kinds: NDArray[np.uint64]
    numbers: dict[str, IntColumn]
    flags: dict[str, bool]
    puts: IntColumn


def cast_entries(
    data: bytes, starts: Places, keys: Sequence[Key], roles: dict[str, str], known: KnownMolds
) -> list[Cast]:
    """Sort entries by molds.

    Args:
        data: The pickle.
        starts: Where the entries begin; the last one is left out, as its end is not known.
        keys: The keys of entries, in their order.
        roles: What each key is.
        known: Molds found before; new ones are added.

    Returns:
        What fits; entries that fit nothing are in none of them.
    """
    lengths = np.diff(starts)
    sizes, inverse, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    padded = data + bytes(_MAX_ENTRY_BYTES + _WORD)
    by_length = known.choose(keys)
    casts: list[Cast] = []
    for number in np.argsort(-counts).tolist():
        length = int(sizes[number])
        if counts[number] < _MIN_ALIKE or length > _MAX_ENTRY_BYTES:
            continue
        molds = by_length.setdefault(length, [])
        rows = np.flatnonzero(inverse == number)
        failures = 0
        while len(rows) >= _MIN_ALIKE and len(casts) < _MAX_MOLDS and failures < _MAX_FAILURES:
            start = int(starts[rows[0]])
            entry = data[start : start + length]
            mold = _find_mold(molds, entry)
            if mold is None:
                mold = _try_mold(keys, entry, roles)
                if mold is None:
                    rows = rows[1:]
                    failures += 1
                    continue
                molds.append(mold)
                known.count += 1
            matrix = _gather(padded, starts[rows], length)
            fits = ~((matrix.view("<u8") ^ mold.words) & mold.mask_words).any(axis=1)
            casts.append(_read(mold, rows[fits], matrix if fits.all() else matrix[fits]))
            rows = rows[~fits]
    return casts


def _find_mold(molds: Sequence[Mold], entry: bytes) -> Mold | None:
    value = int.from_bytes(entry, "little")
    return next((mold for mold in molds if not (value ^ mold.value) & mold.mask), None)


def _gather(padded: bytes, starts: Places, length: int) -> Matrix:
    """Copy the bytes of entries of one length into the lines of a matrix, in whole words."""
    width = -(-length // _WORD) * _WORD
    # One line for each place, over one another: only those that are asked for are copied.
    lines = np.ndarray((len(padded) - width + 1, width), np.uint8, padded, strides=(1, 1))
    copied: Matrix = lines[starts]
    return copied


def _read(mold: Mold, rows: Places, matrix: Matrix) -> Cast:
    numbers: dict[str, IntColumn] = {
        name: _take(matrix, offset, kind) for name, offset, kind in mold.numbers
    }
    for name, value in mold.constants:
        numbers[name] = np.full(len(rows), value, dtype=np.int64)
    kinds = matrix[:, mold.calls].astype(np.uint64) @ mold.factors + mold.salt
    return Cast(rows, kinds, numbers, dict(mold.flags), _take(matrix, _DICT_PUT, "<u4"))


def _take(matrix: Matrix, offset: int, kind: str) -> IntColumn:
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(matrix[:, offset : offset + width]).view(kind)[:, 0]


# After the opcodes of the dictionary and of its place in the memo.
_DICT_PUT = 2


class _Builder:
    """Takes one entry apart."""

    def __init__(self, entry: bytes) -> None:
        self._entry = entry
        self._mask = bytearray(b"\xff" * len(entry))
        self._calls: list[int] = []
        self._shape = bytearray()
        self.at = 0

    def pass_over(self, *opcodes: int) -> None:
        """Expect some opcodes, in this order."""
        for opcode in opcodes:
            if self._entry[self.at] != opcode:
                raise _NoMoldError
            self._skip()

    def pass_key(self, key: Key) -> bool:
        """Pass over a key if it is next."""
        if not self._entry.startswith(key.token, self.at):
            return False
        self.at += len(key.token)
        return True

    def read_number(self) -> tuple[int, str] | int:
        """Read one number: its offset and type, or its value where it is always the same."""
        opcode = self._entry[self.at]
        if opcode == _NONE:
            self._skip()
            return 0
        offset, kind = self.at + 1, _NUMBER_TYPES.get(opcode, "")
        if opcode == _LONG1 and self._entry[offset] == _LONG_BYTES:
            offset, kind = offset + 1, "<i8"
        if not kind:
            raise _NoMoldError
        width = np.dtype(kind).itemsize
        self._mask[offset : offset + width] = bytes(width)
        self.at = offset + width
        return offset, kind

    def _pass_number(self) -> None:
        opcode = self._entry[self.at]
        size = self._entry[self.at + 1] + 1 if opcode == _LONG1 else _PAYLOAD[opcode]
        first = self.at + (2 if opcode == _LONG1 else 1)
        self.at += 1 + size
        self._mask[first : self.at] = bytes(self.at - first)

    def read_flag(self) -> bool:
        """Read True or False."""
        opcode = self._entry[self.at]
        if opcode not in _FLAGS:
            raise _NoMoldError
        self._skip()
        return _FLAGS[opcode]

    def pass_value(self, following: Key | None, *, is_read: bool) -> None:
        """Pass over a value, up to the next key or the end; a number that nobody reads may vary."""
        while not self._is_next(following):
            if not is_read and self._entry[self.at] in _VARYING:
                self._pass_number()
            elif self._entry[self.at] in _CALLS:
                self._pass_call(is_read=is_read)
            else:
                start = self.at
                self._skip()
                # Where the memo puts something differs, and what is put there does not.
                is_put = self._entry[start] == _PUT
                self._shape += b"r" if is_put else self._entry[start : self.at]

    def _pass_call(self, *, is_read: bool) -> None:
        first, size = self.at + 1, _PAYLOAD[self._entry[self.at]]
        self.at = first + size
        self._mask[first : self.at] = bytes(size)
        if is_read:
            self._shape.append(self._entry[first - 1])
            self._calls += range(first, self.at)

    def finish(self) -> tuple[bytes, list[int], bytes]:
        """Expect the end; return what must be the same, what calls for the memo, and the rest."""
        if self._entry[self.at] != _END or self.at + 1 != len(self._entry):
            raise _NoMoldError
        return bytes(self._mask), self._calls, bytes(self._shape)

    def _is_next(self, following: Key | None) -> bool:
        if following is None:
            return self._entry[self.at] == _END
        return self._entry.startswith(following.token, self.at)

    def _skip(self) -> None:
        """Pass over one opcode and what belongs to it; numbers that the memo gives may vary."""
        opcode = self._entry[self.at]
        size = _PAYLOAD.get(opcode)
        if opcode == _TEXT:
            size = 4 + int.from_bytes(self._entry[self.at + 1 : self.at + 5], "little")
        if size is None:
            raise _NoMoldError
        if opcode == _PUT:
            self._mask[self.at + 1 : self.at + 5] = bytes(4)
        self.at += 1 + size


def _try_mold(keys: Sequence[Key], entry: bytes, roles: dict[str, str]) -> Mold | None:
    always = [key for key in keys if roles[key.name] != "optional"]
    for chain in (always, keys) if len(always) < len(keys) else (always,):
        try:
            return make_mold(chain, entry, roles)
        except (_NoMoldError, IndexError):
            continue
    return None


def make_mold(keys: Sequence[Key], entry: bytes, roles: dict[str, str]) -> Mold:
    """Take an entry apart.

    Args:
        keys: The keys of the entry, in their order.
        entry: The bytes of the entry.
        roles: What each key is.

    Returns:
        What entries of its kind have in common.
    """
    builder = _Builder(entry)
    builder.pass_over(_DICT, _PUT, _MARK)
    numbers: list[tuple[str, int, str]] = []
    constants: list[tuple[str, int]] = []
    flags: list[tuple[str, bool]] = []
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        if not builder.pass_key(key):
            raise _NoMoldError
        role = roles[key.name]
        if role == "number":
            read = builder.read_number()
            if isinstance(read, int):
                constants.append((key.name, read))
            else:
                numbers.append((key.name, *read))
        elif role == "flag":
            flags.append((key.name, builder.read_flag()))
        else:
            builder.pass_value(following, is_read=role not in _UNREAD)
    mask_bytes, calls, shape = builder.finish()
    mask = int.from_bytes(mask_bytes, "little")
    return Mold(
        length=len(entry),
        value=int.from_bytes(entry, "little") & mask,
        mask=mask,
        words=_as_words(entry),
        mask_words=_as_words(mask_bytes),
        calls=np.array(calls, dtype=np.intp),
        factors=_FACTORS[: len(calls)],
        salt=np.uint64(int.from_bytes(blake2b(shape, digest_size=_WORD).digest(), "little")),
        numbers=tuple(numbers),
        constants=tuple(constants),
        flags=tuple(flags),
    )


def _as_words(data: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(data.ljust(-(-len(data) // _WORD) * _WORD, b"\0"), dtype="<u8")


def find_called(
    data: NDArray[np.uint8], words: NDArray[np.uint64], puts: IntColumn
) -> Places | None:
    """Find the entries that put something into the memo which the pickle takes out again.

    Args:
        data: The bytes of the pickle.
        words: The eight bytes that begin at each place.
        puts: The first memo number of each entry.

    Returns:
        The places of these entries; bytes that only look like a call count too. None when the
        numbers do not rise, as those of one pickler do.
    """
    if not (np.diff(puts) > 0).all():
        return None
    calls = np.flatnonzero(data == _LONG_GET)
    called = (words[calls] >> np.uint64(8)) & np.uint64(0xFFFFFFFF)
    called = called[(called >= int(puts[0])) & (called < int(puts[-1]) + _MAX_ENTRY_BYTES)]
    return np.unique(np.searchsorted(puts, called.astype(np.int64), side="right") - 1)
