"""A process that maps the files it is told to, one after the other, until its input ends."""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import IO

from whystuck.read.traces.mapping import run_task

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one message.

    Raises:
        OSError: The other side is gone.
    """
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one message; None when the other side is gone, even in the middle of one."""
    head = _read_exactly(stream, _LENGTH.size)
    return None if head is None else _read_exactly(stream, _LENGTH.unpack(head)[0])


def main() -> None:
    """Answer each task on the input with what came of it."""
    # Whoever started us is told of Ctrl-C, too, and ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(int(sys.argv[1]))
    tasks = sys.stdin.buffer
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while (task := read_frame(tasks)) is not None:
        answer = run_task(task)
        try:
            write_frame(answers, answer)
        except OSError:
            return


def _limit_memory(limit_bytes: int) -> None:
    """Let a file that unpacks without end fail here, before the machine runs out of memory."""
    if limit_bytes and sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _read_exactly(stream: IO[bytes], size: int) -> bytes | None:
    data = stream.read(size)
    return data if len(data) == size else None
