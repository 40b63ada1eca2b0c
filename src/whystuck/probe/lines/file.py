"""The file of executed lines: a header, the names of functions, and a ring for each thread.

`docs/executed-lines.md` has the layout. It is mapped, so that it outlives the process.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import weakref

from ..files import make_mapped

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import CodeType

MAGIC = b"WSLIN001"
HEADER_BYTES = 256
NAMES_BYTES = 1 << 18
MAX_THREADS = 64
MIN_LINES, MAX_LINES = 10, 10_000
SETTRACE, MONITORING = 1, 2
_HEADER = struct.Struct("<8sIIIIQQQQqqdd")
_NAMES_USED, _LOST_THREADS = 32, 40
_COSTS, _PROBLEM = 72, 96
_PUT_COSTS = struct.Struct("<dd").pack_into
_PUT_COUNT = struct.Struct("<Q").pack_into
_THREAD = struct.Struct("<QQQ40s")
THREAD_BYTES = _THREAD.size
_NAME_HEAD = struct.Struct("<I")
ENTRY = struct.Struct("<QII")
PUT_ENTRY = ENTRY.pack_into
ENTRY_BYTES = ENTRY.size
# Of the code of a library, or of a function whose name does not fit.
HIDDEN = 0


class LineFile:
    """The mapped file; names and threads are added under a lock, entries by their thread alone."""

    def __init__(self, path: str, capacity: int, method: int) -> None:
        self.capacity = min(max(capacity, MIN_LINES), MAX_LINES)
        self._room = THREAD_BYTES + self.capacity * ENTRY_BYTES
        self._threads_at = HEADER_BYTES + NAMES_BYTES
        self._lock = threading.Lock()
        self._used = 0
        self._codes = 0
        self._lost = 0
        self._owners: list[weakref.ref[threading.Thread]] = []
        self.map = make_mapped(path, self._threads_at + MAX_THREADS * self._room)
        _HEADER.pack_into(
            self.map, 0, MAGIC, HEADER_BYTES, self.capacity, MAX_THREADS, method,
            NAMES_BYTES, 0, 0, 0, time.monotonic_ns(), time.time_ns(), 0.0, 0.0,
        )  # fmt: skip

    def tell_costs(self, line_ns: float, call_ns: float) -> None:
        """Note what a line of the user's code, and a call of a library's function, cost here."""
        _PUT_COSTS(self.map, _COSTS, line_ns, call_ns)

    def tell_problem(self, text: str) -> None:
        """Note why no lines are recorded; nothing when they are."""
        data = text.encode("utf-8", "replace")[: HEADER_BYTES - _PROBLEM]
        self.map[_PROBLEM : _PROBLEM + len(data)] = data

    def add_code(self, code: CodeType) -> int:
        """Return the number of a function, from 1; `HIDDEN` when there is no room for its name."""
        data = json.dumps([code.co_filename, code.co_name]).encode()
        with self._lock:
            if self._used + _NAME_HEAD.size + len(data) > NAMES_BYTES:
                return HIDDEN
            at = HEADER_BYTES + self._used
            _NAME_HEAD.pack_into(self.map, at, len(data))
            self.map[at + _NAME_HEAD.size : at + _NAME_HEAD.size + len(data)] = data
            self._used += _NAME_HEAD.size + len(data)
            # A reader believes this number: it comes after what it counts.
            _PUT_COUNT(self.map, _NAMES_USED, self._used)
            self._codes += 1
            return self._codes

    def add_thread(self) -> int | None:
        """Return where the entries of this thread go, or None when too many threads are alive."""
        thread = threading.current_thread()
        with self._lock:
            place = self._find_place()
            if place is None:
                self._lost += 1
                _PUT_COUNT(self.map, _LOST_THREADS, self._lost)
                return None
            self._owners[place : place + 1] = [weakref.ref(thread)]
            at = self._threads_at + place * self._room
            self.map[at : at + self._room] = bytes(self._room)
            is_main = thread is threading.main_thread()
            name = thread.name.encode("utf-8", "replace")[:40]
            _THREAD.pack_into(self.map, at, thread.native_id or 0, is_main, time.time_ns(), name)
            return at + THREAD_BYTES

    def _find_place(self) -> int | None:
        """Return a place that is free, or that of a thread that has ended."""
        if len(self._owners) < MAX_THREADS:
            return len(self._owners)
        for place, owner in enumerate(self._owners):
            thread = owner()
            if thread is None or not thread.is_alive():
                return place
        return None
