"""How much memory the C library's allocator keeps for a process that runs as long as a job."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ARENA_MAX = -8


def use_one_arena() -> None:
    """Have all threads allocate from one heap.

    glibc makes one for each thread that meets another one in it, and what one of them frees is of
    no use to the others: such a process grows for hours. Python runs one thread at a time anyway.
    """
    # Not in musl, nor on macOS.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def return_memory() -> None:
    """Give back what work has freed: 60 MB stay with the allocator after a look, 37 without."""
    with suppress(AttributeError, OSError):  # as above
        ctypes.CDLL(None).malloc_trim(0)
