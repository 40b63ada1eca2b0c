"""Gives back to the system what dumps, traces and inspections have freed.

It stays with the C library's allocator, between what the job has: 20 to 30 MiB a rank after some
hundred of them. Nothing is done in a job of which nobody asks for any.
"""

from __future__ import annotations

import sys

# Looks, one a second, from the last request until its memory is free.
_REST_LOOKS = 3
_MIN_FREE_BYTES = 1 << 20
# More is the job's own, which would have to get it again: 64 MiB are taken in 8 ms.
_MAX_FREE_BYTES = 64 << 20
# Of `struct mallinfo2`.
_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip
_FREE = "fordblks"


class Heap:
    """What is free in the heaps of this process, for as long as requests come."""

    def __init__(self) -> None:
        self._rest = 0

    def note_use(self, *, is_used: bool = True) -> None:
        """Note that a request is served, whose memory will be free soon."""
        if is_used:
            self._rest = _REST_LOOKS

    def look(self) -> None:
        """Give memory back once the last request is over; called once a second in our thread."""
        if not self._rest:
            return
        self._rest -= 1
        if not self._rest and _MIN_FREE_BYTES <= count_free() <= _MAX_FREE_BYTES:
            sys.modules["ctypes"].CDLL(None).malloc_trim(0)


def count_free() -> int:
    """Return the bytes that all heaps have free; 0 where the C library does not tell."""
    import ctypes

    libc = ctypes.CDLL(None)
    try:
        tell = libc.mallinfo2  # glibc 2.33 and newer
    except AttributeError:
        return 0
    told = type(
        "mallinfo2",
        (ctypes.Structure,),
        {"_fields_": [(name, ctypes.c_size_t) for name in _FIELDS]},
    )
    tell.restype = told
    return int(getattr(tell(), _FREE))


HEAP = Heap()
