"""Finds out of one entry what all that are alike byte by byte have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn
from whystuck.parse.dumps.fast.entry_keys import ROLES, Key
from whystuck.parse.dumps.fast.equal_values import mix

Places = NDArray[np.intp]
Hashes = NDArray[np.uint64]
Matrix = NDArray[np.uint8]
MAX_ENTRY_BYTES = 4096
WORD = 8
_UNREAD = ("skip", "optional")
_DICT, _MARK, _END = ord("}"), ord("("), ord("u")
_PUT = ord("r")
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
# How many values an opcode adds to the stack, other than one, or to what was there at the mark.
_PUSHED = {ord("a"): -1, 0x85: 0, 0x86: -1, 0x87: -2, _PUT: 0}
_TO_MARK = {ord("e"): 0, ord("t"): 1}
_LONG_BYTES = 8
_CALLS = frozenset(b"hj")
_VARYING = frozenset(b"KMJG\x8a")
# After the opcodes of the dictionary and of its place in the memo.
_DICT_PUT = 2
_PUT_NAME = "put"


class _NoTemplateError(Exception):
    """An entry cannot serve as a template."""


@dataclass(frozen=True)
class EntryTemplate:
    """What entries of one kind have in common.

    ``value`` and ``mask`` are the bytes that must be the same, as one large number each, and as
    words. ``windows`` are the places, shifts and masks of words that hold what calls for something
    in the memo; ``salt`` stands for all else that tells kinds apart, so that entries of one kind
    have one number in all layouts. ``fields`` is the layout of the numbers that vary.
    """

    value: int
    mask: int
    words: Hashes
    mask_words: Hashes
    windows: tuple[tuple[int, np.uint64, np.uint64], ...]
    salt: np.uint64
    fields: np.dtype[np.void]
    flags: tuple[tuple[str, bool], ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers that vary; the others are null."""
        return tuple(name for name in self.fields.names or () if name != _PUT_NAME)

    @property
    def has_put(self) -> bool:
        """Whether the memo gets something of an entry."""
        return _PUT_NAME in (self.fields.names or ())

    def fits(self, matrix: Matrix) -> BoolColumn:
        """Tell which lines of a matrix are alike.

        Args:
            matrix: The bytes of an entry in each line, in whole words.
        """
        other = matrix.view("<u8") ^ self.words
        other &= self.mask_words
        same: BoolColumn = np.bitwise_or.reduce(other, axis=1) == 0
        return same

    def read_kinds(self, matrix: Matrix) -> Hashes:
        """Give one number for each line: the same for those that call for the same."""
        total = np.full(len(matrix), self.salt)
        for offset, shift, mask in self.windows:
            word = matrix[:, offset : offset + WORD].view("<u8")[:, 0]
            total = mix(total, (word >> shift) & mask)
        return total

    def view(self, matrix: Matrix) -> NDArray[Any]:
        """Look at the lines as structures with the numbers that vary."""
        return matrix.view(self.fields)[:, 0]

    @staticmethod
    def read_puts(view: NDArray[Any]) -> IntColumn:
        """Read the number that the memo gives to each entry."""
        puts: IntColumn = view[_PUT_NAME].astype(np.int64)
        return puts


class _Builder:
    """Takes one entry apart."""

    def __init__(self, entry: bytes) -> None:
        self._entry = entry
        self._mask = bytearray(b"\xff" * len(entry))
        # Calls that are not parted by a number, whose width differs, are at the same distance.
        self._calls: list[list[int]] = [[]]
        self._shape = bytearray()
        self._may_put = False
        self.at = 0

    def pass_start(self) -> bool:
        """Expect the start of a dictionary; tell whether it is given a place in the memo."""
        # An entry whose own place is not known cannot be found by what it puts into the memo.
        self._may_put = self._entry[1] == _PUT
        self.pass_over(_DICT, *((_PUT,) if self._may_put else ()), _MARK)
        return self._may_put

    def pass_over(self, *opcodes: int) -> None:
        """Expect some opcodes, in this order."""
        for opcode in opcodes:
            if self._entry[self.at] != opcode:
                raise _NoTemplateError
            self._skip()

    def pass_key(self, key: Key) -> bool:
        """Pass over a key if it is next."""
        if not self._entry.startswith(key.token, self.at):
            return False
        self.at += len(key.token)
        return True

    def read_number(self) -> tuple[int, str] | None:
        """Read one number: its offset and type, or None for null."""
        opcode = self._entry[self.at]
        self._calls.append([])
        if opcode == _NONE:
            self._skip()
            return None
        offset, kind = self.at + 1, _NUMBER_TYPES.get(opcode, "")
        if opcode == _LONG1 and self._entry[offset] == _LONG_BYTES:
            offset, kind = offset + 1, "<i8"
        if not kind:
            raise _NoTemplateError
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
            raise _NoTemplateError
        self._skip()
        return _FLAGS[opcode]

    def pass_value(self, following: Key | None, *, is_read: bool) -> None:
        """Pass over a value, up to the next key or the end; a number that nobody reads may vary."""
        first = self.at
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
        self._check_value(first)

    def _check_value(self, at: int) -> None:
        """Make sure that what was passed over is one value, and does not hold a key again."""
        depth = 0
        marks: list[int] = []
        while at < self.at:
            opcode = self._entry[at]
            if opcode == _MARK:
                marks.append(depth)
            elif opcode in _TO_MARK:
                if not marks:
                    raise _NoTemplateError
                depth = marks.pop() + _TO_MARK[opcode]
            else:
                depth += _PUSHED.get(opcode, 1)
            at += self._measure(at)
        if depth != 1 or marks:
            raise _NoTemplateError

    def _measure(self, at: int) -> int:
        """Tell how long an opcode is with what belongs to it."""
        opcode = self._entry[at]
        if opcode == _TEXT:
            return 5 + int.from_bytes(self._entry[at + 1 : at + 5], "little")
        if opcode == _LONG1:
            return 2 + self._entry[at + 1]
        return 1 + _PAYLOAD[opcode]

    def _pass_call(self, *, is_read: bool) -> None:
        first, size = self.at + 1, _PAYLOAD[self._entry[self.at]]
        self.at = first + size
        self._mask[first : self.at] = bytes(size)
        if is_read:
            self._shape.append(self._entry[first - 1])
            self._calls[-1] += range(first, self.at)

    def finish(self) -> tuple[bytes, list[list[int]], bytes]:
        """Expect the end; return what must be the same, what calls for the memo, and the rest."""
        if self._entry[self.at] != _END or self.at + 1 != len(self._entry):
            raise _NoTemplateError
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
            raise _NoTemplateError
        if opcode == _PUT:
            if not self._may_put:
                raise _NoTemplateError
            self._mask[self.at + 1 : self.at + 5] = bytes(4)
        self.at += 1 + size


def try_template(keys: Sequence[Key], entry: bytes) -> EntryTemplate | None:
    """Return what entries like this one have in common; None where that cannot be told."""
    always = [key for key in keys if ROLES[key.name] != "optional"]
    for chain in (always, keys) if len(always) < len(keys) else (always,):
        try:
            return _make_template(chain, entry)
        except (_NoTemplateError, IndexError):
            continue
    return None


def _make_template(keys: Sequence[Key], entry: bytes) -> EntryTemplate:
    """Take an entry apart.

    Args:
        keys: The keys of the entry, in their order.
        entry: The bytes of the entry.

    Returns:
        What entries of its kind have in common.
    """
    builder = _Builder(entry)
    numbers = {_PUT_NAME: (_DICT_PUT, "<u4")} if builder.pass_start() else {}
    flags: list[tuple[str, bool]] = []
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        if not builder.pass_key(key):
            raise _NoTemplateError
        role = ROLES[key.name]
        if role == "number":
            read = builder.read_number()
            if read is not None:
                numbers[key.name] = read
        elif role == "flag":
            flags.append((key.name, builder.read_flag()))
        else:
            builder.pass_value(following, is_read=role not in _UNREAD)
    mask_bytes, calls, shape = builder.finish()
    mask = int.from_bytes(mask_bytes, "little")
    words = _as_words(entry)
    return EntryTemplate(
        value=int.from_bytes(entry, "little") & mask,
        mask=mask,
        words=words,
        mask_words=_as_words(mask_bytes),
        windows=tuple(_cut_windows(calls, len(words) * WORD)),
        salt=np.uint64(int.from_bytes(blake2b(shape, digest_size=WORD).digest(), "little")),
        fields=_lay_out(numbers, len(words) * WORD),
        flags=tuple(flags),
    )


def _cut_windows(
    calls: Sequence[Sequence[int]], width: int
) -> Iterator[tuple[int, np.uint64, np.uint64]]:
    """Cover the places of bytes with as few words as possible."""
    for run in calls:
        at = 0
        while at < len(run):
            first = run[at]
            inside = [place - first for place in run[at:] if place < first + WORD]
            at += len(inside)
            offset = min(first, width - WORD)
            mask = sum(0xFF << (8 * place) for place in inside)
            yield offset, np.uint64(8 * (first - offset)), np.uint64(mask)


def _lay_out(numbers: dict[str, tuple[int, str]], width: int) -> np.dtype[np.void]:
    return np.dtype(
        {
            "names": list(numbers),
            "formats": [kind for _offset, kind in numbers.values()],
            "offsets": [offset for offset, _kind in numbers.values()],
            "itemsize": width,
        }
    )


def _as_words(data: bytes) -> Hashes:
    return np.frombuffer(data.ljust(-(-len(data) // WORD) * WORD, b"\0"), dtype="<u8")
