"""Has the C library keep freed memory for the next columns."""

from __future__ import annotations

from functools import cache

import numpy as np

# The largest block for which glibc still changes its habits (`DEFAULT_MMAP_THRESHOLD_MAX`).
_BLOCK_BYTES = 31 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have memory of up to some MB that is freed be used again rather than given back.

    Columns are made and dropped all the time. By default glibc gives the memory of each back to
    the system and asks for it anew, and then most of the time goes into making it empty, page by
    page. It learns from the largest block that was freed; none of it is ever touched. Other C
    libraries take no notice. It works once a process.
    """
    np.empty(_BLOCK_BYTES, dtype=np.uint8)
