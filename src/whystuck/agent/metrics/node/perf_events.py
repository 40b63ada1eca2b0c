"""Counters of the kernel and of processors, by the system call perf_event_open(2)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from contextlib import suppress
from errno import ENODEV, ENOENT, ENOSYS, EOPNOTSUPP
from typing import NamedTuple

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
# struct perf_event_attr in its first version, which every kernel takes.
_ATTR = struct.Struct("=IIQQQQQIIQ")
_TIMES_FORMAT = 1 | 2  # time enabled, time running
_GROUP_FORMAT = 8
_DISABLED = 1 << 0
_INHERIT = 1 << 1
_EXCLUDE_KERNEL = 1 << 5
_EXCLUDE_HYPERVISOR = 1 << 6
_CLOSE_ON_EXEC = 8
_ENABLE = 0x2400  # ioctl PERF_EVENT_IOC_ENABLE
_WHOLE_GROUP = 1
_WORD = struct.Struct("=Q")
_MAX_EVENTS = 16
UNSUPPORTED = frozenset({ENOENT, ENODEV, EOPNOTSUPP, ENOSYS})
"""Errors that say that this machine does not have such a counter."""


class Event(NamedTuple):
    """What is counted: ``type`` and ``config`` as in linux/perf_event.h."""

    name: str
    type: int
    config: int


_HARDWARE, _SOFTWARE, _CACHE = 0, 1, 3
CYCLES = Event("cycles", _HARDWARE, 0)
INSTRUCTIONS = Event("instructions", _HARDWARE, 1)
CACHE_MISSES = Event("cache_misses", _HARDWARE, 3)
BRANCH_MISSES = Event("branch_misses", _HARDWARE, 5)
DTLB_MISSES = Event("dtlb_misses", _CACHE, 3 | (0 << 8) | (1 << 16))  # data TLB, read, miss
TASK_CLOCK = Event("task_clock", _SOFTWARE, 1)  # ns
PAGE_FAULTS = Event("page_faults", _SOFTWARE, 2)
CONTEXT_SWITCHES = Event("context_switches", _SOFTWARE, 3)


class Count(NamedTuple):
    """A counter as it was read: it ran for ``running_ns`` of the ``enabled_ns`` it should have."""

    value: int
    enabled_ns: int
    running_ns: int


def open_event(
    event: Event, *, pid: int, cpu: int, leader: int = -1, is_inherited: bool = False
) -> int:
    """Open a counter.

    Args:
        event: What to count.
        pid: A thread, or -1 for all that runs on ``cpu``.
        cpu: A processor, or -1 for all that the thread runs on.
        leader: The descriptor of the group that it joins, or -1 for one that counts only once its
            group is complete: see `enable_group`.
        is_inherited: Whether threads and processes count that the thread starts from now on.

    Returns:
        A descriptor for `read_group`, or for `read_one` when it is inherited.

    Raises:
        OSError: As the kernel says: one of `UNSUPPORTED`, or EACCES or EPERM without the right.
    """
    flags = _INHERIT if is_inherited else 0
    if leader < 0 and not is_inherited:
        # The kernel does not always count what joins a group that is already being counted.
        flags |= _DISABLED
    try:
        return _call(event, pid, cpu, leader, flags)
    except PermissionError:
        # Without rights only what runs outside of the kernel may be counted.
        return _call(event, pid, cpu, leader, flags | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)


def enable_group(leader: int) -> None:
    """Start to count a group that has all its members; raises OSError."""
    fcntl.ioctl(leader, _ENABLE, _WHOLE_GROUP)


def _call(event: Event, pid: int, cpu: int, leader: int, flags: int) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    # The kernel takes no group of inherited counters.
    form = _TIMES_FORMAT if flags & _INHERIT else _TIMES_FORMAT | _GROUP_FORMAT
    attr = _ATTR.pack(event.type, _ATTR.size, event.config, 0, 0, form, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attr),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(leader),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def read_group(leader: int) -> list[Count]:
    """Read a group, in the order its members were opened; raises OSError."""
    data = os.read(leader, 8 * (3 + _MAX_EVENTS))
    words = [word for (word,) in _WORD.iter_unpack(data)]
    if len(words) < 3 or len(words) < 3 + words[0]:  # noqa: PLR2004 - number and two times
        return []  # the group could not be put on the processor at all
    number, enabled_ns, running_ns = words[:3]
    return [Count(value, enabled_ns, running_ns) for value in words[3 : 3 + number]]


def read_one(descriptor: int) -> Count | None:
    """Read an inherited counter; None when it could not be put on a processor; raises OSError."""
    data = os.read(descriptor, 24)
    return Count(*struct.unpack("=QQQ", data)) if len(data) == 24 else None  # noqa: PLR2004


class Scaled:
    """A counter that shares the hardware with others, scaled to all the time it was enabled.

    What it did not see is taken to be like what it saw since the reading before, so that the
    sum never goes back, as ``value * enabled / running`` over its whole life would.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._before = Count(0, 0, 0)

    def note(self, count: Count) -> None:
        """Take a reading."""
        before = self._before
        running_ns = count.running_ns - before.running_ns
        if running_ns > 0:
            enabled_ns = max(running_ns, count.enabled_ns - before.enabled_ns)
            self.total += max(0, count.value - before.value) * enabled_ns / running_ns
            self._before = count


def close_all(descriptors: Sequence[int]) -> None:
    """Close counters."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
