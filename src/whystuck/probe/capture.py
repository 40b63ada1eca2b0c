"""Per-rank logs: swap standard output and error for a pair that the supervisor reads.

Only a stream that still is the very pipe or terminal which the supervisor gave to the command is
swapped, and for one of the same kind; a redirect that the user or the launcher made stays.
"""

from __future__ import annotations

import os

from . import files, wire

_STREAMS = ((1, files.STDOUT_ENV), (2, files.STDERR_ENV))
_REPLY_TIMEOUT_S = 5.0


def identify(fd: int) -> str:
    """Name the file behind a descriptor, equal in two processes that share it."""
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


def capture_output(rank: int) -> bool:
    """Swap what may be swapped; return whether anything was."""
    wanted = [fd for fd, name in _STREAMS if _is_ours(fd, name)]
    if not wanted:
        return False
    fds = wire.tell("capture", rank, f'"streams": {wanted}', _REPLY_TIMEOUT_S)
    try:
        if len(fds) != len(wanted):
            return False
        for new, old in zip(fds, wanted):
            os.dup2(new, old)
        return True
    finally:
        for fd in fds:
            os.close(fd)


def _is_ours(fd: int, name: str) -> bool:
    try:
        return identify(fd) == os.environ.get(name)
    except OSError:
        return False
