"""Gives back to the system what dumps, traces and inspections have freed.

It stays with the C library's allocator, between what the job has: 20 to 30 MiB a rank after some
hundred of them. Nothing is done in a job of which nobody asks for any.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

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
            _find_library().malloc_trim(0)


def count_free() -> int:
    """Return the bytes that all heaps have free; 0 where the C library does not tell."""
    try:
        return int(getattr(_find_library().mallinfo2(), _FREE))
    except AttributeError:
        return 0  # as in `_find_library`


# Each `CDLL` and `Structure` is a class, 15 kB in a cycle: many jobs switch its collector off.
_LIBRARY: list[Any] = []


def _find_library() -> Any:
    """Find the C library, once."""
    if not _LIBRARY:
        import ctypes

        libc = ctypes.CDLL(None)
        fields = [(name, ctypes.c_size_t) for name in _FIELDS]
        try:
            libc.mallinfo2.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
        except AttributeError:
            pass  # glibc before 2.33, or another library
        _LIBRARY.append(libc)
    return _LIBRARY[0]


HEAP = Heap()
