"""Steps through many places of a pickle at the same time: the reading head of `entry_scan`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn
from whystuck.parse.dumps.fast.entry_keys import GiveUpError, Key
from whystuck.parse.dumps.fast.equal_values import mix

Places = NDArray[np.intp]
Words = NDArray[np.uint64]

_PADDING = 32
_MAX_TOKENS = 4096
_BYTE = np.uint64(0xFF)
_8 = np.uint64(8)
_PLACE = np.uint64(0xFFFFFFFF)
_TRUE, _FALSE, _LONG1, _TEXT, _END = 0x88, 0x89, 0x8A, ord("X"), ord("u")
_LONG1_LEAD = 2
_SHORT_KEY = 2
_MAX_LENGTHS = 64
_TEXT_LEAD = 5
_NEGATIVE = 1 << 31


def _make_table(sizes: dict[str, int]) -> Places:
    table = np.zeros(256, dtype=np.intp)
    for opcodes, size in sizes.items():
        for opcode in opcodes.encode("latin-1"):
            table[opcode] = size
    return table


# The length of each token of one value; 0 for what does not belong there.
_TOKEN_BYTES = _make_table(
    {"N\x88\x89])(ate\x85\x86\x87": 1, "Khq": 2, "M": 3, "Jjr": 5, "G": 9, "\x8a": 2, "X": 5}
)
_NUMBER_BYTES = _make_table({"N": 1, "K": 2, "M": 3, "J": 5, "\x8a": 2})
# What of the bytes after an opcode belongs to it.
_VALUE_BITS = np.zeros(256, dtype=np.uint64)
for _opcodes, _bits in ((b"Khq", 8), (b"M", 16), (b"Jjr", 32)):
    for _opcode in _opcodes:
        _VALUE_BITS[_opcode] = (1 << _bits) - 1
_IS_PUT = np.zeros(256, dtype=np.bool_)
_IS_PUT[[ord("q"), ord("r")]] = True


class Lanes:
    """Many places in one pickle, that move on together. A lane that meets something odd is out."""

    def __init__(self, data: bytes) -> None:
        """Look at a pickle."""
        self._data = data
        padded = data + bytes(_PADDING)
        self._bytes = np.frombuffer(padded, dtype=np.uint8)
        # The eight bytes that begin at each place.
        self._words: Words = np.ndarray((len(data) + 16,), "<u8", padded, strides=(1,))
        self._limit = len(data)
        self._at: Places = np.empty(0, dtype=np.intp)
        self._word: Words = np.empty(0, dtype=np.uint64)
        self._plain = False
        self.regular: BoolColumn = np.empty(0, dtype=np.bool_)

    def __len__(self) -> int:
        """Return the number of lanes."""
        return len(self._at)

    def find_starts(self, first: int, key: Key) -> Places:
        """Find the dictionaries that begin with a key.

        Args:
            first: Where the first of them begins, which defines the key.
            key: The key.

        Returns:
            Where they begin, the first one too.
        """
        places = np.flatnonzero(self._bytes[: self._limit] == ord("}"))
        places = places[places > first]
        lead = self._lead(places)
        token = np.frombuffer(key.token, dtype=np.uint8)
        fits = (lead > 0) & (self._bytes[places + lead] == ord("("))
        for offset, byte in enumerate(token.tolist()):
            fits &= self._bytes[np.minimum(places + lead + 1 + offset, self._limit)] == byte
        return np.concatenate(([first], places[fits]))

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The bytes of the pickle."""
        return self._bytes[: self._limit]

    @property
    def words(self) -> Words:
        """The eight bytes that begin at each place."""
        return self._words

    def begin(self, starts: Places) -> None:
        """Go to the first keys of dictionaries.

        Args:
            starts: Where the dictionaries begin.
        """
        lead = self._lead(starts)
        self._at = starts + lead + 1
        # torch's own pickler gives no container of an entry a place in the memo.
        self._plain = bool((lead == 1).all())
        self.regular = np.ones(len(starts), dtype=np.bool_)

    def _lead(self, places: Places) -> Places:
        """Tell how far the mark of a dictionary is from its start: a memo number may be between."""
        following = self._bytes[places + 1]
        return np.where(
            following == ord("("),
            1,
            np.where(following == ord("q"), 3, np.where(following == ord("r"), 6, 0)),
        )

    def end(self) -> Places:
        """Expect the ends of the dictionaries, and tell where they are."""
        self._keep(self._bytes[self._at] == _END)
        return self._at + 1

    def expect(self, key: Key) -> None:
        """Pass over a key.

        Args:
            key: What must be there.
        """
        word = self._words[self._at]
        self._keep(self._matches(word, key))
        self._move(len(key.token))
        # One look serves the key and most values: with a short key, five bytes follow it.
        short = len(key.token) == _SHORT_KEY
        self._word = word >> np.uint64(8 * _SHORT_KEY) if short else self._words[self._at]

    def skip_optional(self, key: Key) -> None:
        """Pass over a key and its number where they are.

        Args:
            key: What may be there.
        """
        there = self._is_at(key)
        value = self._at + len(key.token)
        opcode = self._bytes[np.minimum(value, self._limit)]
        size = np.where(opcode == ord("G"), 9, _NUMBER_BYTES[opcode])
        self._keep(~there | (size > 0))
        self._at = np.minimum(np.where(there, value + size, self._at), self._limit)

    def read_number(self) -> IntColumn:
        """Read an integer, 0 for None."""
        word = self._word
        opcode = (word & _BYTE).astype(np.intp)
        value = (word >> _8) & _VALUE_BITS[opcode]
        size = _NUMBER_BYTES[opcode]
        odd = (size == 0) | ((opcode == ord("J")) & (value >= _NEGATIVE))
        long = np.flatnonzero(opcode == _LONG1)
        if len(long):
            digits = ((word[long] >> _8) & _BYTE).astype(np.intp)
            payload = self._words[self._at[long] + _LONG1_LEAD]
            unused = np.minimum(8 * (8 - np.minimum(digits, 8)), 63).astype(np.uint64)
            payload = (payload << unused) >> unused
            negative = (payload << unused) >> np.uint64(63) > 0
            value[long] = payload
            size[long] += digits
            odd[long] |= negative | (digits == 0) | (digits > 8)  # noqa: PLR2004 - bytes of int64
        self._keep(~odd)
        self._step(size)
        return value.astype(np.int64)

    def read_flag(self) -> BoolColumn:
        """Read True or False."""
        opcode = self._word & _BYTE
        self._keep((opcode == _TRUE) | (opcode == _FALSE))
        self._move(1)
        is_true: BoolColumn = opcode == _TRUE
        return is_true

    def read_text(self) -> Words:
        """Read a text, as a number that stands for it."""
        word = self._word
        opcode = (word & _BYTE).astype(np.intp)
        size = _TOKEN_BYTES[opcode]
        value = self._mark(word, opcode)
        texts = np.flatnonzero(opcode == _TEXT)
        self._keep((opcode == ord("h")) | (opcode == ord("j")) | (opcode == _TEXT))
        if len(texts):
            length = ((word[texts] >> _8) & _PLACE).astype(np.intp)
            start = self._at[texts] + _TEXT_LEAD
            length = np.minimum(length, np.maximum(self._limit - start, 0))
            value[texts] = self.hash_spans(start, length)
            size[texts] += length
        self._step(size)
        if len(texts):
            word = self._words[self._at[texts]]
            opcode = (word & _BYTE).astype(np.intp)
            mixed = mix(value[texts], self._mark(word, opcode))
            value[texts] = np.where(self._is_called(word, opcode), mixed, value[texts])
            self._at[texts] += np.where(_IS_PUT[opcode], _TOKEN_BYTES[opcode], 0)
            np.minimum(self._at, self._limit, out=self._at)
        return value

    def read_value(self, following: Key | None) -> Words:
        """Read a value of any kind, as a number that stands for it.

        Args:
            following: The key after it.

        Returns:
            Equal numbers for values that are written alike.
        """
        if self._plain and following is not None:
            return self._read_span(following)
        total = np.zeros(len(self._at), dtype=np.uint64)
        active = np.flatnonzero(self.regular)
        for _token in range(_MAX_TOKENS):
            at = self._at[active]
            word = self._words[at]
            there = self._matches(word, following)
            if there.any():
                going = ~there
                active, at, word = active[going], at[going], word[going]
            if len(active) == 0:
                return total
            opcode = (word & _BYTE).astype(np.intp)
            size = _TOKEN_BYTES[opcode]
            mark = self._mark(word, opcode)
            silent = _IS_PUT[opcode]
            if silent.any():
                silent &= ~self._is_called(word, opcode)
            if (opcode == _TEXT).any() or (size == 0).any():
                odd = (opcode == _TEXT) | (size == 0) | (opcode == _LONG1)
                self.regular[active[odd]] = False
                active, at, size = active[~odd], at[~odd], size[~odd]
                mark, silent = mark[~odd], silent[~odd]
            mixed = mix(total[active], mark)
            total[active] = np.where(silent, total[active], mixed)
            self._at[active] = np.minimum(at + size, self._limit)
        raise GiveUpError

    def skip_value(self, following: Key | None) -> None:
        """Pass over a value of any kind.

        Args:
            following: The key after it.
        """
        if following is None:
            self.read_value(following)
        else:
            self._step(self._measure(following))

    def _read_span(self, following: Key) -> Words:
        length = self._measure(following)
        total = self.hash_spans(self._at, length)
        self._step(length)
        return total

    def _measure(self, following: Key) -> Places:
        """Tell how far the next key is away, which mostly is as far as for a lane before.

        A place that only looks like the key leads to a wrong end of the entry, where it is seen.
        """
        length = np.zeros(len(self._at), dtype=np.intp)
        open_lanes = np.flatnonzero(self.regular)
        for _length in range(_MAX_LENGTHS):
            if len(open_lanes) == 0:
                break
            at = self._at[open_lanes]
            size = self._data.find(following.token, at[0]) - int(at[0])
            if size < 0:
                raise GiveUpError
            there = self._matches(self._words[np.minimum(at + size, self._limit)], following)
            length[open_lanes[there]] = size
            open_lanes = open_lanes[~there]
        self.regular[open_lanes] = False
        return length

    def hash_spans(self, start: Places, length: Places) -> Words:
        """Give one number for the bytes of each span.

        Args:
            start: Where each begins.
            length: Its bytes.

        Returns:
            Equal numbers for equal spans.
        """
        total = length.astype(np.uint64)
        if len(length) == 0:
            return total
        longest = int(length.max())
        # Lanes that are out have no length; what is read for them does not matter.
        whole = int(length[length > 0].min(initial=longest)) // 8 * 8
        for offset in range(0, whole, 8):
            total = mix(total, self._words[np.minimum(start + offset, self._limit)])
        active = np.arange(len(start))
        for offset in range(whole, longest, 8):
            active = active[length[active] > offset]
            left = np.minimum(length[active] - offset, 8)
            unused = (8 * (8 - left)).astype(np.uint64)
            word = self._words[np.minimum(start[active] + offset, self._limit)] << unused
            total[active] = mix(total[active], word)
        return total

    def _mark(self, word: Words, opcode: Places) -> Words:
        """Give the opcode and its operand as one number."""
        return (((word >> _8) & _VALUE_BITS[opcode]) << _8) | (word & _BYTE)

    @cached_property
    def _called(self) -> Words:
        """Places of the memo that something may refer to: only those tell values apart."""
        calls = np.flatnonzero(self._bytes[: self._limit] == ord("j"))
        return np.unique((self._words[calls] >> _8) & _PLACE)

    def _is_called(self, word: Words, opcode: Places) -> BoolColumn:
        """Tell the tokens that put something into the memo that may be taken out again."""
        called: BoolColumn = opcode == ord("q")
        wide = np.flatnonzero(opcode == ord("r"))
        if len(wide) and len(self._called):
            place = (word[wide] >> _8) & _PLACE
            near = np.minimum(np.searchsorted(self._called, place), len(self._called) - 1)
            called[wide] = self._called[near] == place
        return called

    def _is_at(self, key: Key) -> BoolColumn:
        return self._matches(self._words[self._at], key)

    @staticmethod
    def _matches(word: Words, key: Key | None) -> BoolColumn:
        if key is None:
            at_end: BoolColumn = (word & _BYTE) == _END
            return at_end
        size = len(key.token)
        mask = np.uint64((1 << (8 * size)) - 1)
        at_key: BoolColumn = (word & mask) == int.from_bytes(key.token, "little")
        return at_key

    def _keep(self, sound: BoolColumn) -> None:
        self.regular &= sound

    def _move(self, size: int) -> None:
        self._at = np.minimum(self._at + size, self._limit)

    def _step(self, size: Places) -> None:
        self._at = np.minimum(self._at + size, self._limit)
