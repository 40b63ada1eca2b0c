"""The names of threads of the probe."""

from __future__ import annotations

import ctypes
import os
import threading

_PR_SET_NAME = 15


def name_thread(name: str) -> None:
    """Name this thread in the kernel too, so that ``top -H`` tells whose it is.

    Not the main thread, whose name is that of the process: gevent runs our function there.
    """
    if threading.get_native_id() != os.getpid():
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
