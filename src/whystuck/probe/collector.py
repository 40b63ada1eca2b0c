"""Where the garbage collector of this interpreter keeps whether it runs.

Nothing can be called in this process while it runs: the collector holds the GIL, and what a handler
of the job raises in a function of ``gc.callbacks`` is lost. The supervisor looks from outside.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct

_get_interpreter = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))
# Of the interpreter's state; what is wanted stands at byte 856 of it in Python 3.11.
_MOST_BYTES = 1 << 16
# From CPython's ``struct _gc_runtime_state``: for each of three generations how many collections
# there were, and what they did; then whether one runs, and two lists.
_STATISTICS = struct.Struct("9n")
_STATE = struct.Struct("9nnPP")
_NAMES = ("collections", "collected", "uncollectable")


def find_collector() -> int:
    """Return the address of the collector's counts, 0 where this interpreter has none like that.

    The counts are those of `gc.get_stats`, 72 bytes; the int behind them is not 0 while one runs.
    """
    interpreter = _get_interpreter() or 0
    descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = os.pread(descriptor, _MOST_BYTES, interpreter)
    finally:
        os.close(descriptor)
    lists = struct.pack("PP", id(gc.garbage), id(gc.callbacks))
    offset = memory.find(lists) + len(lists) - _STATE.size
    if offset < 0 or not _are_statistics(_STATISTICS.unpack_from(memory, offset)):
        return 0
    return interpreter + offset


def _are_statistics(counts: tuple[int, ...]) -> bool:
    now = [one.get(name, -1) for one in gc.get_stats() for name in _NAMES]
    # There may have been collections since.
    return len(now) == len(counts) and all(0 <= one <= then for one, then in zip(counts, now))
