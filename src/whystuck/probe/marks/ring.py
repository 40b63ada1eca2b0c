"""The file of marks: a header, names, and a ring of marks of 32 bytes.

`docs/marks.md` has the layout.
"""

from __future__ import annotations

import itertools
import re
import struct
import time

from ..mapped_log import PUT_TWO_TIMES, MappedLog

MAGIC = b"WSMARK01"
STEP, DATALOADER, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, USER, DEVICE = range(8)
KINDS = 8
# What is marked has changed: the generation in the place of the end, the kinds in that of the name.
SWITCHED = 255
NAME = 1
MARK = struct.Struct("<QqqIHBB")
# 1 MB, some 5,000 steps. Odd, so that two marks of one place differ in the last byte.
CAPACITY = 32767
_VALUES_BYTES = 1 << 16
_MAX_NAME_CHARS = 200
_MANY_NAMES, _NUMBERS = 256, re.compile(r"\d+")
_BEGIN, _END = 8, 16
_TOTALS_AT = 128
_PUT_TOTALS = struct.Struct(f"<{2 * KINDS}Q").pack_into
_PUT = MARK.pack_into
_PUT_TIME = struct.Struct("<q").pack_into
_now_ns = time.monotonic_ns


class MarkRing(MappedLog):
    """The mapped file; written under the GIL by any thread of the process."""

    def __init__(self, path: str, capacity: int = CAPACITY) -> None:
        """Make the file; raises OSError."""
        super().__init__(path, MAGIC, MARK.size, capacity | 1, _VALUES_BYTES, (NAME,))
        self._numbers = itertools.count(1)
        self.newest = 0
        # Time and number of all that have ended, by kind.
        self._totals = [0] * (2 * KINDS)
        self._names: dict[str, int] = {"": 0}
        self._is_full = False

    def put(self, kind: int, name: int, step: int, begin_ns: int, end_ns: int = 0) -> int:
        """Write a mark, and return its number."""
        self.newest = number = next(self._numbers)
        at = self.offset + (number - 1) % self.capacity * 32
        _PUT(self.map, at, number, begin_ns, end_ns, step & 0xFFFFFFFF, name, kind, number & 255)
        return number

    def end(self, number: int, kind: int, name: int, step: int, begin_ns: int) -> None:
        """Write when a mark ended; one that was written over since is written anew."""
        now_ns = _now_ns()
        if self.newest - number < self.capacity:
            at = self.offset + (number - 1) % self.capacity * 32
            _PUT_TIME(self.map, at + _END, now_ns)
        else:
            self.put(kind, name, step, begin_ns, now_ns)
        self.count(kind, now_ns - begin_ns)

    def count(self, kind: int, spent_ns: int) -> None:
        """Add a mark that has ended to the totals."""
        totals = self._totals
        totals[2 * kind] += spent_ns
        totals[2 * kind + 1] += 1

    def put_totals(self) -> None:
        """Write how much time all phases took so far, for whoever looks from outside."""
        _PUT_TOTALS(self.map, _TOTALS_AT, *self._totals)

    def begin_anew(self, number: int, begin_ns: int) -> bool:
        """Make an instant the begin of a range; return whether it is still there."""
        if self.newest - number >= self.capacity:
            return False
        at = self.offset + (number - 1) % self.capacity * 32
        PUT_TWO_TIMES(self.map, at + _BEGIN, begin_ns, 0)
        return True

    def learn_name(self, name: str) -> int:
        """Return the number of a name; 0 when there is no room for it.

        Where there are many, names that differ in numbers alone are one: `step 17` is `step #`.
        """
        number = self._names.get(name)
        if number is None:
            if len(self._names) > _MANY_NAMES:
                name = _NUMBERS.sub("#", name)
                number = self._names.get(name)
            if number is None and not self._is_full:
                number = self.add(NAME, {"name": name[:_MAX_NAME_CHARS]})
                if number:
                    self._names[name] = number
                elif not self.has_room(0):
                    self._is_full = True
        return number or 0

    def list_names(self) -> dict[int, str]:
        """Return all names by number."""
        return {number: name for name, number in list(self._names.items())}
