"""The file of the op log: a header, values that records refer to by number, and a ring of records.

`docs/op-log.md` has the layout.
"""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time

from ..files import make_mapped

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

MAGIC = b"WSOPS001"
HEADER_BYTES = 4096
VALUES_BYTES = 1 << 20
DEFAULT_CAPACITY = 16384
_MIN_CAPACITY, _MAX_CAPACITY = 64, 1 << 22
RECORD = struct.Struct("<QqqqqqQIIHHIQQQ")
RECORD_BYTES = RECORD.size
RETURNED, START, PENDING, DONE = 16, 24, 32, 40
FLAGS, EXTRA = 68, 80
_FORM = 56
# HOST: the op works on tensors of the host, so that a call that is not async waits for its end.
ASYNC, P2P, ISSUE_FAILED, FAILED, NO_END, HOST = 1, 2, 4, 8, 16, 32
_HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQ")
_VALUES_USED, _VALUES_LOST, _LAST_CLOCK, _GENERATION, _IS_ON, _STEP = 48, 56, 80, 96, 104, 112
# Since when not all ops may be on record, 0 when each one is recorded as it is issued.
LOOKED = 120
_ABOUT = 512
_VALUE_HEAD = struct.Struct("<II")
_MAX_VALUE_BYTES = 16384
_SHORT_VALUE_BYTES = 512
# Kept for what is no form with its sizes: a job may have more of those than fit in any table.
SPARE_BYTES = VALUES_BYTES // 4
_WORD = 8
GROUP, FORM, SITE, THREAD, NOTE = 1, 2, 3, 4, 5

PUT_RECORD = RECORD.pack_into
PUT_TIME = struct.Struct("<q").pack_into
PUT_TWO_TIMES = struct.Struct("<qq").pack_into
_READ = struct.Struct("<Qq24xq18xHI").unpack_from
_PUT_FLAGS = struct.Struct("<I").pack_into
_PUT_COUNT = struct.Struct("<Q").pack_into


class Ring:
    """The mapped file; written under the GIL by any thread of the process."""

    def __init__(
        self,
        path: str,
        capacity: int = DEFAULT_CAPACITY,
        make_counter: Callable[[int], Any] = itertools.count,
    ) -> None:
        self.capacity = min(max(capacity, _MIN_CAPACITY), _MAX_CAPACITY)
        self.offset = HEADER_BYTES + VALUES_BYTES
        self.size = self.offset + self.capacity * RECORD_BYTES
        # What counts records and ops; an extension that records too counts by the same ones.
        self.make_counter = make_counter
        self.numbers = make_counter(1)
        self._used = 0
        self._lost = 0
        self._counts = dict.fromkeys((GROUP, FORM, SITE, THREAD, NOTE), 0)
        self._lock = threading.Lock()
        self.map = make_mapped(path, self.size)
        clock = time.monotonic_ns(), time.time_ns()
        _HEADER.pack_into(
            self.map, 0, MAGIC, HEADER_BYTES, RECORD_BYTES, self.capacity,
            HEADER_BYTES, VALUES_BYTES, self.offset, 0, 0, *clock, *clock, 0, 0, 0,
        )  # fmt: skip

    def place(self, number: int) -> int:
        """Return the offset of a record."""
        return self.offset + (number - 1) % self.capacity * RECORD_BYTES

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

    def describe(self, about: dict[str, Any]) -> None:
        """Write what this process is."""
        data = json.dumps(about).encode()[: HEADER_BYTES - _ABOUT - 4]
        self.map[_ABOUT : _ABOUT + 4 + len(data)] = struct.pack("<I", len(data)) + data

    def add(self, kind: int, value: dict[str, Any], *, spare_bytes: int = 0) -> int:
        """Add a value and return its number; 0 when it does not fit.

        With ``spare_bytes``, that many must be left, and nothing is lost where they are not.
        """
        data = json.dumps(value, separators=(",", ":")).encode()
        with self._lock:
            room = _VALUE_HEAD.size + len(data) + -len(data) % _WORD
            if len(data) > _MAX_VALUE_BYTES or self._used + room + spare_bytes > VALUES_BYTES:
                if not spare_bytes:
                    self._lost += 1
                    _PUT_COUNT(self.map, _VALUES_LOST, self._lost)
                return 0
            start = HEADER_BYTES + self._used
            _VALUE_HEAD.pack_into(self.map, start, len(data), kind)
            self.map[start + _VALUE_HEAD.size : start + _VALUE_HEAD.size + len(data)] = data
            self._used += room
            _PUT_COUNT(self.map, _VALUES_USED, self._used)
            self._counts[kind] += 1
            return self._counts[kind]

    def has_room(self, spare_bytes: int) -> bool:
        """Return whether a short value fits beside so many bytes: to write out one takes long."""
        return self._used + _SHORT_VALUE_BYTES + spare_bytes <= VALUES_BYTES

    def beat(self, step: int) -> None:
        """Note the clocks, so that a reader knows until when it can tell what is not over."""
        PUT_TWO_TIMES(self.map, _LAST_CLOCK, time.monotonic_ns(), time.time_ns())
        _PUT_COUNT(self.map, _STEP, step)

    def set_state(self, generation: int, *, is_on: bool) -> None:
        """Note whether ops are recorded from now on, and by which word of the switch."""
        _PUT_COUNT(self.map, _GENERATION, generation)
        _PUT_COUNT(self.map, _IS_ON, int(is_on))
