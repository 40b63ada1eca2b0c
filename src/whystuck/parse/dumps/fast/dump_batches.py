"""Reads the entries of many pickled dumps at a time: the fast lane of `entry_scan`.

The dumps of one job have the same keys and much the same entries. They are put one after the
other, so that each step of numpy serves all of them, and their number does not grow with the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn
from whystuck.parse.dumps.fast.entry_keys import NAMES, Key
from whystuck.parse.dumps.fast.entry_templates import KnownTemplates
from whystuck.parse.dumps.fast.template_builder import (
    MAX_ENTRY_BYTES,
    WORD,
    EntryTemplate,
    Hashes,
    Matrix,
    Places,
)

# No key can begin in one pickle and end in the next.
_GAP = bytes(2 * WORD)
# Fewer alike than this are read faster by the unpickler.
_MIN_ALIKE = 4
# More kinds than this in one dump are read faster lane by lane.
_MAX_TEMPLATES = 24
# Entries in a row that cannot be a template, or are like few others: they are of the few that
# speak of something for the first time, each at the start of its dump, or each has its own sizes.
_MAX_FAILURES = 3
_DICT, _MARK, _LONG_GET = ord("}"), ord("("), ord("j")
_APPENDS_MARK = b"ue("
_PLACE = np.uint64(0xFFFFFFFF)
_8 = np.uint64(8)
_DUMP_BITS = 33


class Batch:
    """Pickles whose entries have the same keys, one after the other.

    A row is an entry of any of them. ``firsts`` are the rows at which those of each dump begin,
    and the number of all rows at the end; ``starts`` and ``stops`` are the places of their bytes.
    The end of the last entry of each dump is not known: there it is the end of the dump.
    """

    def __init__(
        self, pickles: Sequence[bytes], entries: Sequence[int], keys: tuple[Key, ...]
    ) -> None:
        """Find the entries.

        Args:
            pickles: The dumps.
            entries: Where the first entry of each begins.
            keys: The keys of all entries, in their order.
        """
        self.pickles = pickles
        self.keys = keys
        parts = [part for one in pickles for part in (one, _GAP)]
        self.data = b"".join([*parts, bytes(MAX_ENTRY_BYTES)])
        self.bytes = np.frombuffer(self.data, dtype=np.uint8)
        # The eight bytes that begin at each place.
        self.words: Hashes = np.ndarray((len(self.data) - WORD,), "<u8", self.data, strides=(1,))
        sizes = np.array([len(one) for one in pickles], dtype=np.intp)
        self.ends: Places = np.cumsum(sizes + len(_GAP)) - len(_GAP)
        self.starts, self.firsts = self._find_starts(self.ends - sizes + entries)
        self.stops = self._find_stops()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.starts)

    @cached_property
    def dump(self) -> Places:
        """The dump of each entry."""
        return np.repeat(np.arange(len(self.pickles)), np.diff(self.firsts))

    @property
    def lasts(self) -> Places:
        """The row of the last entry of each dump."""
        return self.firsts[1:] - 1

    def count(self, rows: BoolColumn) -> IntColumn:
        """Count the marked rows of each dump."""
        counts: IntColumn = np.add.reduceat(rows, self.firsts[:-1], dtype=np.int64)
        return counts

    def _find_starts(self, first: Places) -> tuple[Places, Places]:
        """Find the dictionaries that begin with the first key, after those that define it."""
        places = np.flatnonzero(self.bytes[: self.ends[-1]] == _DICT)
        following = self.bytes[places + 1]
        lead = np.where(following == ord("r"), 6, np.where(following == ord("q"), 3, 1))
        token = self.keys[0].token
        size = 8 * (1 + len(token))
        wanted = int.from_bytes(bytes([_MARK]) + token, "little")
        there = self.words[places + lead] & np.uint64((1 << size) - 1)
        places = places[there == wanted]
        low = np.searchsorted(places, first, side="right")
        high = np.maximum(low, np.searchsorted(places, self.ends))
        parts = [
            part
            for one, begin, end in zip(first.tolist(), low.tolist(), high.tolist(), strict=True)
            for part in ((one,), places[begin:end])
        ]
        starts = np.concatenate(parts, dtype=np.intp)
        return starts, np.concatenate(([0], np.cumsum(1 + high - low)))

    def _find_stops(self) -> Places:
        stops = np.append(self.starts[1:], 0)
        stops[self.lasts] = self.ends
        # Python ends a list and goes on with it after every thousand entries.
        tail = self.words[stops - len(_APPENDS_MARK)] & np.uint64(0xFFFFFF)
        stops[tail == int.from_bytes(_APPENDS_MARK, "little")] -= len(_APPENDS_MARK) - 1
        stops[self.lasts] = self.ends
        return stops

    def gather(self, rows: Places, length: int) -> Matrix:
        """Copy the bytes of entries of one length into the lines of a matrix, in whole words."""
        width = -(-length // WORD) * WORD
        # One line for each place, over one another: only those that are asked for are copied.
        lines = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        copied: Matrix = lines[self.starts[rows]].view(np.uint8).reshape(len(rows), width)
        return copied

    def cut_out(self, number: int, rows: Places) -> bytes:
        """Take all entries out of a dump but a few.

        Args:
            number: Which dump.
            rows: Its entries that stay; the last one must be among them.

        Returns:
            A pickle.
        """
        begin = int(self.ends[number]) - len(self.pickles[number])
        starts, stops = self.starts[rows].tolist(), self.stops[rows].tolist()
        first = int(self.starts[self.firsts[number]])
        data = self.data
        pieces = [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return b"".join((data[begin:first], *pieces))


class TemplateMatches:
    """What templates tell of the entries of a batch; ``puts`` is -1 where the memo gets nothing."""

    def __init__(self, batch: Batch, known: KnownTemplates) -> None:
        """Read the entries that have templates.

        Args:
            batch: The entries.
            known: Templates found before; new ones are added.
        """
        count = len(batch)
        self._batch = batch
        self.regular: BoolColumn = np.zeros(count, dtype=np.bool_)
        self.kinds: Hashes = np.zeros(count, dtype=np.uint64)
        self.puts: IntColumn = np.full(count, -1, dtype=np.int64)
        self.numbers: dict[str, IntColumn] = {
            name: np.zeros(count, dtype=np.int64) for name in NAMES["number"]
        }
        self.flags: dict[str, BoolColumn] = {
            name: np.zeros(count, dtype=np.bool_) for name in NAMES["flag"]
        }
        self._left = _MAX_TEMPLATES * len(batch.pickles)
        self._cast_all(known)

    def _cast_all(self, known: KnownTemplates) -> None:
        batch = self._batch
        lengths = np.minimum(batch.stops - batch.starts, MAX_ENTRY_BYTES + 1).astype(np.uint16)
        # The first one holds the texts of the keys, and the end of the last one is not known.
        lengths[batch.firsts[:-1]] = lengths[batch.lasts] = 0
        counts = np.bincount(lengths, minlength=MAX_ENTRY_BYTES + 2)
        ends = np.cumsum(counts)
        order = np.argsort(lengths, kind="stable")
        counts[[0, MAX_ENTRY_BYTES + 1]] = 0
        by_length = known.choose(batch.keys)
        for length in np.argsort(-counts, kind="stable").tolist():
            count, end = int(counts[length]), int(ends[length])
            if count < _MIN_ALIKE:
                break
            templates = by_length.setdefault(length, [])
            self._cast(order[end - count : end], length, templates, known)

    def _cast(
        self, rows: Places, length: int, templates: list[EntryTemplate], known: KnownTemplates
    ) -> None:
        """Read entries of one length."""
        matrix = self._batch.gather(rows, length)
        failures = _MAX_FAILURES
        while len(rows) >= _MIN_ALIKE and self._left > 0 and failures > 0:
            template = known.find(templates, matrix[0, :length].tobytes(), self._batch.keys)
            if template is None:
                rows, matrix = rows[1:], matrix[1:]
                failures -= 1
                continue
            self._left -= 1
            fits = template.fits(matrix)
            failures = failures - 1 if np.count_nonzero(fits) < _MIN_ALIKE else _MAX_FAILURES
            if fits.all():
                self._read(template, rows, matrix)
                return
            self._read(template, rows[fits], matrix[fits])
            rows, matrix = rows[~fits], matrix[~fits]

    def _read(self, template: EntryTemplate, rows: Places, matrix: Matrix) -> None:
        self.regular[rows] = True
        self.kinds[rows] = template.read_kinds(matrix)
        view = template.view(matrix)
        if template.has_put:
            self.puts[rows] = template.read_puts(view)
        for name in template.numbers:
            self.numbers[name][rows] = view[name]
        for name, value in template.flags:
            if value:
                self.flags[name][rows] = True

    def find_odd(self) -> set[int]:
        """Find the dumps whose memo does not grow from entry to entry, as it should."""
        dump = self._batch.dump[self._with_puts]
        return set(dump[1:][np.diff(self._keys) <= 0].tolist())

    @cached_property
    def _with_puts(self) -> Places:
        """The rows that put something into the memo."""
        return np.flatnonzero(self.puts >= 0)

    @cached_property
    def _keys(self) -> IntColumn:
        """The dump and the first memo number of the rows that put something into the memo."""
        rows = self._with_puts
        keys: IntColumn = (self._batch.dump[rows] << _DUMP_BITS) | self.puts[rows]
        return keys

    def find_called(self, rows: Places) -> Places:
        """Find the entries that put into the memo what others take out.

        Args:
            rows: The entries that take out.

        Returns:
            The other entries; bytes that only look like a call count too.
        """
        if len(self._with_puts) == 0:
            return self._with_puts
        batch = self._batch
        spans = zip(batch.starts[rows].tolist(), batch.stops[rows].tolist(), strict=True)
        text = b"".join([batch.data[start:stop] for start, stop in spans])
        at = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _LONG_GET)
        text += bytes(WORD)
        words = np.ndarray((len(text) - WORD,), "<u8", text, strides=(1,))
        number = ((words[at] >> _8) & _PLACE).astype(np.int64)
        ends = np.cumsum(batch.stops[rows] - batch.starts[rows])
        dump = batch.dump[rows[np.searchsorted(ends, at, side="right")]]
        calls = (dump << _DUMP_BITS) | number
        found = np.searchsorted(self._keys, calls, side="right") - 1
        called = self._with_puts[found]
        # What is below the first number of a dump is of its header, and not beyond the last.
        there = (found >= 0) & (batch.dump[called] == dump)
        there &= number < self.puts[called] + MAX_ENTRY_BYTES
        others: Places = called[there]
        return others
