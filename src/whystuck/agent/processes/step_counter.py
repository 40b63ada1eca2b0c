"""The count of steps that the probe of a process keeps in shared memory, read at any moment.

The layout is told in `whystuck.probe.shared_steps`. What lies there is the word of the process.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import msgspec

from whystuck.evidence.agent import ProcessEntry

_LINK = "/memfd:whystuck-steps"
_VERSION = 1
_MAX_FILES = 1 << 16  # a process may open a million, to hold the agent up
_KEPT = 16
_WORD_BYTES = 8
_TIMES = 2
_SIZE_BYTES = _WORD_BYTES * (_TIMES + _KEPT)
# How many steps before the newest one: the pace on the whole, and of late. The place of the oldest
# one may be written to in this moment.
_BACK = (_KEPT - 2, 8, 4)
# Kineto counts iterations in 32 bits.
_MAX_COUNT = 2**31 - 1
_MAX_TIME_NS = 2**62


class StepsAt(msgspec.Struct, frozen=True):
    """How many steps had been made at a time, wall-clock."""

    steps: int
    time_ns: int


@dataclass
class StepCounter:
    """An open counter of a process; it can be read after the process has ended, too."""

    descriptor: int

    def read(self) -> list[StepsAt]:
        """Return the newest count and some from a few steps before, the oldest one first.

        Empty when no step was made, or what lies there makes no sense.
        """
        if self.descriptor < 0:
            return []
        try:
            data = os.pread(self.descriptor, _SIZE_BYTES, 0)
        except OSError:
            return []
        words = memoryview(data).cast("Q") if len(data) == _SIZE_BYTES else [0, 0]
        version, count = words[0], words[1]
        if version != _VERSION or not 0 < count <= _MAX_COUNT:
            return []
        newest = StepsAt(count, words[_TIMES + count % _KEPT])
        if not 0 < newest.time_ns < _MAX_TIME_NS:
            return []
        before = sorted({max(1, count - back) for back in _BACK} - {count})
        found = [StepsAt(one, words[_TIMES + one % _KEPT]) for one in before]
        return [one for one in found if 0 < one.time_ns < newest.time_ns] + [newest]

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def open_counter(pid: int) -> StepCounter | None:
    """Open the counter of a process, by its number on this host.

    Returns None when it has none, or its files may not be looked at.
    """
    folder = f"/proc/{pid}/fd"
    try:
        with os.scandir(folder) as files:
            for one in islice(files, _MAX_FILES):
                if _is_named(one.path) and (found := _open(one.path)) is not None:
                    return found
    except OSError:
        return None
    return None


def fill_steps(entry: ProcessEntry) -> ProcessEntry:
    """Return what is known of a process with the steps that its counter tells, if it has one."""
    counter = open_counter(entry.pid) if entry.steps < 0 else None
    if counter is None:
        return entry
    found = counter.read()
    counter.close()
    if not found:
        return msgspec.structs.replace(entry, steps=0)
    return msgspec.structs.replace(entry, steps=found[-1].steps, steps_ns=found[-1].time_ns)


def _is_named(path: str) -> bool:
    try:
        return os.readlink(path).startswith(_LINK)  # noqa: PTH115 - what it says, not the file
    except OSError:
        return False


def _open(path: str) -> StepCounter | None:
    """Open it, unless something else has come to its place since it was looked at."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size == _SIZE_BYTES:
            return StepCounter(descriptor)
        os.close(descriptor)
    return None
