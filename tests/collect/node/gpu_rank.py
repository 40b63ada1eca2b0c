"""Stands for a rank with CUDA's driver: reads its pipe, and writes a dump of its device."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path


def expand(name: str) -> str:
    value = os.environ[name]
    return value.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))


def serve(mode: str, size: int) -> None:
    """Answer the first write; ``mode`` is ``dumps``, ``hangs`` or ``deaf``, without a reader."""
    pipe = expand("CUDA_COREDUMP_PIPE")
    os.mkfifo(pipe)
    fd = -1 if mode == "deaf" else os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    print("ready", flush=True)
    while fd < 0 or mode == "hangs":
        time.sleep(60)
    select.select([fd], [], [])
    # A pipe holds 64 KiB: what is written has to be taken out again.
    while os.read(fd, 1 << 20):
        time.sleep(0.01)
        if not select.select([fd], [], [], 0)[0]:
            break
    with Path(expand("CUDA_COREDUMP_FILE")).open("wb") as out:
        for _ in range(size):
            out.write(b"\x7fELF".ljust(1024, b"\0"))
            out.flush()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
    time.sleep(600)
