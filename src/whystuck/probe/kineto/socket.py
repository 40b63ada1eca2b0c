"""Starting Kineto where it does the job no harm: a thread can start, and its socket lies apart.

Kineto's thread opens the socket in C++ and keeps the number for good. A job that closed it and had
a socket of its own there would lose messages to Kineto.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time

from .. import descriptors
from ..threads import OwnThread

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

# It takes some milliseconds; the job waits for it.
_WAIT_S = 0.25
_LOOK_S = 0.002
# One for Kineto, and one that the job may start at this moment.
_THREADS = 2


class NoThreadError(Exception):
    """No thread can start, which would end the process in C++."""


def start_apart(start: Callable[[], None], on_lost: Callable[[], None]) -> None:
    """Start Kineto, and watch its socket.

    Args:
        start: Starts it; the socket is opened in a thread soon after.
        on_lost: Called once when the job has closed the socket.

    Raises:
        NoThreadError: There is no room for one; nothing was started.
    """
    _try_threads()
    fillers = descriptors.fill()
    try:
        before = _list_numbers()
        start()
        fd = _wait_for_socket(before)
    finally:
        for one in fillers:
            os.close(one)
    if fd >= 0:
        os.set_inheritable(fd, False)  # Kineto leaves it open in what the job executes
        descriptors.Descriptor.watch(fd, on_lost)


def _try_threads() -> None:
    ends = threading.Event()
    started = []
    try:
        for _ in range(_THREADS):
            thread = OwnThread(ends.wait, "whystuck-try")
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise NoThreadError from error
    finally:
        ends.set()
        for thread in started:
            thread.join(_WAIT_S)


def _list_numbers() -> set[int]:
    numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    # The list was open itself, at a number that Kineto may get next; below are what we filled.
    return {fd for fd in numbers if fd < descriptors.HIGH or _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _wait_for_socket(before: set[int]) -> int:
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        for fd in sorted(_list_numbers() - before, reverse=True):
            if _is_datagram(fd):
                return fd
        time.sleep(_LOOK_S)
    return -1


def _is_datagram(fd: int) -> bool:
    """Return whether a descriptor is a socket of the kind by which Kineto asks an agent."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        with socket.socket(fileno=os.dup(fd)) as one:
            return one.family == socket.AF_UNIX and one.type == socket.SOCK_DGRAM
    except OSError:
        return False
