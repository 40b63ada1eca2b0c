"""How much memory the C library's allocator keeps for a process that runs as long as a job."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

# Of `mallopt`.
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
# The value that glibc begins with. It raises it, up to 32 MiB, as large blocks are freed.
_LARGE_BYTES = 128 << 10


def use_one_arena() -> None:
    """Have all threads allocate from one heap, and large blocks outside of it.

    glibc makes a heap for each thread that meets another one in it, and what one of them frees is
    of no use to the others: such a process grows for hours. Python runs one thread at a time
    anyway. Large blocks in the heap leave holes with small ones around them: a watcher, whose looks
    take 10 MiB for a moment, grew by 9 MiB an hour with as much in use as before.
    """
    # Not in musl, nor on macOS.
    with suppress(AttributeError, OSError):
        libc = _find_library()
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def return_memory() -> None:
    """Give back what work has freed: 60 MB stay with the allocator after a look, 37 without."""
    with suppress(AttributeError, OSError):  # as above
        _find_library().malloc_trim(0)


@cache
def _find_library() -> ctypes.CDLL:
    """Find the C library, once: each `CDLL` has a class of its own, 15 kB that a cycle keeps."""
    return ctypes.CDLL(None)
