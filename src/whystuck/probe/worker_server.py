"""torch's own C++ server on a unix socket: it answers even while the GIL is held."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Callable

from . import files


def start_worker_server() -> None:
    """Start the server; do nothing where torch has none."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    server_class = getattr(c10d, "_WorkerServer", None)
    if server_class is None:
        return
    made = []
    _without_its_greeting(lambda: made.append(server_class(files.path_of("torch"), -1)))
    # Its destructor joins threads and logs: one reference is never given back, and the
    # server ends with the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[0]))


def _without_its_greeting(start: Callable[[], None]) -> None:
    """Call ``start`` and drop the line that it logs to standard error; keep all others."""
    read_fd, write_fd = os.pipe()
    saved = os.dup(2)
    try:
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        os.dup2(write_fd, 2)
        try:
            start()
        finally:
            os.dup2(saved, 2)
        _forward(read_fd)
    finally:
        for fd in (read_fd, write_fd, saved):
            os.close(fd)


def _forward(read_fd: int) -> None:
    try:
        written = os.read(read_fd, 65536)
    except BlockingIOError:
        return
    for line in written.splitlines(keepends=True):
        if b"WorkerServer.cpp" not in line:
            os.write(2, line)
