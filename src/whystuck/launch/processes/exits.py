"""How a process ended that is not our child, by its pidfd."""

from __future__ import annotations

import fcntl
import os
import struct

from whystuck.collect.processes.proc_files import read_stat

# linux/pidfd.h: struct pidfd_info of 64 bytes, and the ioctl that fills it (Linux 6.15).
_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None when it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def read_wait_status(pid: int, pidfd: int) -> int | None:
    """Return the wait status of an ended process, or None when the kernel does not tell.

    Linux 6.15 and newer answer the pidfd once the parent has reaped, and /proc shows the status
    while the process is a zombie. The parent may reap between the two questions, so that the pidfd
    is asked once more; on older kernels the status is there for a matter of milliseconds.
    """
    for ask in (_ask_pidfd, _ask_proc, _ask_pidfd):
        status = ask(pid, pidfd)
        if status is not None:
            return status
    return None


def _ask_pidfd(_pid: int, pidfd: int) -> int | None:
    buffer = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None  # an older kernel
    if not struct.unpack_from("=Q", buffer)[0] & _PIDFD_INFO_EXIT:
        return None
    return int(struct.unpack_from("=i", buffer, _EXIT_CODE_OFFSET)[0])


def _ask_proc(pid: int, _pidfd: int) -> int | None:
    fields = read_stat(pid)
    # X: being reaped at this moment, and still with its status.
    return int(fields[-1]) if fields[:1] in ([b"Z"], [b"X"]) else None


def split_wait_status(status: int) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of a wait status; one of them is None."""
    number = os.waitstatus_to_exitcode(status)
    return (None, -number) if number < 0 else (number, None)


def read_shell_code(pid: int, pidfd: int) -> int:
    """Return the code of a process that has ended, as shells say it; 0 when it is not known."""
    status = read_wait_status(pid, pidfd)
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
