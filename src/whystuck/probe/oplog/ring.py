"""The file of the op log: a header, values that records refer to by number, and a ring of records.

`docs/op-log.md` has the layout.
"""

from __future__ import annotations

import itertools
import re
import struct

from ..mapped_log import MappedLog

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

MAGIC = b"WSOPS001"
VALUES_BYTES = 1 << 20
DEFAULT_CAPACITY = 16384
_MIN_CAPACITY, _MAX_CAPACITY = 64, 1 << 22
RECORD = struct.Struct("<QqqqqqQIIHHIQQQ")
RECORD_BYTES = RECORD.size
RETURNED, START, PENDING, DONE = 16, 24, 32, 40
FLAGS, EXTRA = 68, 80
_FORM = 56
_SHOWN = re.compile(r"\w+\((\d+)\)")
# HOST: the op works on tensors of the host, so that a call that is not async waits for its end.
ASYNC, P2P, ISSUE_FAILED, FAILED, NO_END, HOST = 1, 2, 4, 8, 16, 32
# Kept for what is no form with its sizes: a job may have more of those than fit in any table.
SPARE_BYTES = VALUES_BYTES // 4
GROUP, FORM, SITE, THREAD, NOTE = 1, 2, 3, 4, 5

PUT_RECORD = RECORD.pack_into
PUT_TIME = struct.Struct("<q").pack_into
_READ = struct.Struct("<Qq24xq18xHI").unpack_from
_PUT_FLAGS = struct.Struct("<I").pack_into


class Ring(MappedLog):
    """The mapped file; written under the GIL by any thread of the process."""

    def __init__(
        self,
        path: str,
        capacity: int = DEFAULT_CAPACITY,
        make_counter: Callable[[int], Any] = itertools.count,
    ) -> None:
        capacity = min(max(capacity, _MIN_CAPACITY), _MAX_CAPACITY)
        kinds = (GROUP, FORM, SITE, THREAD, NOTE)
        super().__init__(path, MAGIC, RECORD_BYTES, capacity, VALUES_BYTES, kinds)
        # What counts records and ops; an extension that records too counts by the same ones.
        self.make_counter = make_counter
        self.numbers = make_counter(1)

    def place(self, number: int) -> int:
        """Return the offset of a record."""
        return self.offset + (number - 1) % self.capacity * RECORD_BYTES

    def count_records(self) -> int:
        """Return how many records were begun so far; 0 where the extension does not tell."""
        # Both counters show their next number; there is no other way to read one and leave it.
        shown = _SHOWN.fullmatch(repr(self.numbers))
        return int(shown[1]) - 1 if shown else 0

    def add_flag(self, number: int, flag: int) -> None:
        """Set one more flag of a record."""
        flags = self.read_flags(number) | flag
        _PUT_FLAGS(self.map, self.place(number) + FLAGS, flags)

    def read_flags(self, number: int) -> int:
        """Return the flags of a record."""
        at = self.place(number) + FLAGS
        return int.from_bytes(self.map[at : at + 4], "little")

    def read(self, number: int) -> tuple[int, ...]:
        """Return number, enqueue, done, thread and flags of the record that is at the place."""
        return _READ(self.map, self.offset + (number - 1) % self.capacity * RECORD_BYTES)

    def read_form(self, number: int) -> int:
        """Return the form of the record that is at the place."""
        at = self.place(number) + _FORM
        return int.from_bytes(self.map[at : at + 4], "little")

    def set_state(self, generation: int, *, is_on: bool) -> None:
        """Note whether ops are recorded from now on, and by which word of the switch."""
        self.put_state(generation, int(is_on))
