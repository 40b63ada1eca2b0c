"""A mapped file of a header, values that records refer to by number, and a ring of records.

`docs/op-log.md` has the layout; the records are those of who uses it.
"""

from __future__ import annotations

import json
import struct
import threading
import time

from .files import make_mapped

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

HEADER_BYTES = 4096
# Since when not all records may be there, 0 when each one is written as it comes.
LOOKED = 120
_HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQ")
_VALUES_USED, _VALUES_LOST, _LAST_CLOCK, _GENERATION, _STATE, _STEP = 48, 56, 80, 96, 104, 112
_ABOUT = 512
_VALUE_HEAD = struct.Struct("<II")
_MAX_VALUE_BYTES = 16384
_SHORT_VALUE_BYTES = 512
_WORD = 8

PUT_TWO_TIMES = struct.Struct("<qq").pack_into
_PUT_COUNT = struct.Struct("<Q").pack_into


class MappedLog:
    """The mapped file; written under the GIL by any thread of the process."""

    def __init__(
        self, path: str, magic: bytes, record_bytes: int, capacity: int, values_bytes: int,
        kinds: Iterable[int],
    ) -> None:  # fmt: skip
        """Make the file; raises OSError.

        Args:
            path: Where.
            magic: What it begins with, 8 bytes.
            record_bytes: Bytes of a record.
            capacity: Records that the ring holds.
            values_bytes: Bytes for values.
            kinds: The kinds of values.
        """
        self.capacity = capacity
        self.offset = HEADER_BYTES + values_bytes
        self.size = self.offset + capacity * record_bytes
        self._values_bytes = values_bytes
        self._used = 0
        self._lost = 0
        self._counts = dict.fromkeys(kinds, 0)
        # A signal handler of the job may add a value in the thread that is adding one.
        self._lock = threading.RLock()
        self._is_busy = False
        self.map = make_mapped(path, self.size)
        clock = time.monotonic_ns(), time.time_ns()
        _HEADER.pack_into(
            self.map, 0, magic, HEADER_BYTES, record_bytes, capacity,
            HEADER_BYTES, values_bytes, self.offset, 0, 0, *clock, *clock, 0, 0, 0,
        )  # fmt: skip

    def describe(self, about: dict[str, Any]) -> None:
        """Write what this process is."""
        data = json.dumps(about).encode()[: HEADER_BYTES - _ABOUT - 4]
        self.map[_ABOUT : _ABOUT + 4 + len(data)] = struct.pack("<I", len(data)) + data

    def add(self, kind: int, value: dict[str, Any], *, spare_bytes: int = 0) -> int:
        """Add a value and return its number; 0 when it does not fit, or while one is added.

        With ``spare_bytes``, that many must be left, and nothing is lost where they are not.
        """
        data = json.dumps(value, separators=(",", ":")).encode()
        with self._lock:
            if self._is_busy:
                return 0
            try:
                self._is_busy = True
                return self._put_value(kind, data, spare_bytes)
            finally:
                self._is_busy = False

    def _put_value(self, kind: int, data: bytes, spare_bytes: int) -> int:
        room = _VALUE_HEAD.size + len(data) + -len(data) % _WORD
        if len(data) > _MAX_VALUE_BYTES or self._used + room + spare_bytes > self._values_bytes:
            if not spare_bytes:
                self._lost += 1
                _PUT_COUNT(self.map, _VALUES_LOST, self._lost)
            return 0
        start = HEADER_BYTES + self._used
        _VALUE_HEAD.pack_into(self.map, start, len(data), kind)
        self.map[start + _VALUE_HEAD.size : start + _VALUE_HEAD.size + len(data)] = data
        # Counted before it is told: what a signal handler raises comes after a call.
        self._used += room
        self._counts[kind] = number = self._counts[kind] + 1
        _PUT_COUNT(self.map, _VALUES_USED, self._used)
        return number

    def has_room(self, spare_bytes: int) -> bool:
        """Return whether a short value fits beside so many bytes: to write out one takes long."""
        return self._used + _SHORT_VALUE_BYTES + spare_bytes <= self._values_bytes

    def beat(self, step: int) -> None:
        """Note the clocks, so that a reader knows until when it can tell what is not over."""
        PUT_TWO_TIMES(self.map, _LAST_CLOCK, time.monotonic_ns(), time.time_ns())
        _PUT_COUNT(self.map, _STEP, step)

    def put_state(self, generation: int, state: int) -> None:
        """Note what is recorded from now on, and by which word of the switch."""
        _PUT_COUNT(self.map, _GENERATION, generation)
        _PUT_COUNT(self.map, _STATE, state)
