"""The heartbeat: a few counters in a small file that any process of the same user can read.

It is written, not mapped: a page of a mapped file that a full disk cannot hold is a SIGBUS.

The layout is read by ``whystuck.collect.beats``; a new field goes to the end.
"""

from __future__ import annotations

import os
import struct
import time

from . import files, progress
from .calling.attempts import attempt
from .collector import find_collector
from .descriptors import Descriptor
from .recorder import names, recorders

MAGIC = b"WSBEAT01"
# The count stands at both ends of what was there first. Replays, recorded ops and the address of
# the garbage collector came later.
LAYOUT = struct.Struct("=8sQQQqqqqqqqQqqq")

# Of a core, for counting; a rank is told to stand still after 20 s, so that no count is older.
_MAX_SHARE = 0.002
_MAX_REST_NS = 4_000_000_000
# Process groups that the job has destroyed.
_MAX_GONE = 256


class Beat:
    """The slot of this process, written once a second by the probe's thread."""

    def __init__(self) -> None:
        self._open()
        self._count = 0
        self._has_group = False
        # What was counted last, and when it is counted again.
        self._counted = 0, 0
        self._due_ns = 0
        self._is_left_out = False
        self._collector = 0
        attempt(self._find_collector)

    def _find_collector(self) -> None:
        self._collector = find_collector()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = Descriptor(os.open(files.path_of("beat"), flags, 0o600), self._open)

    def remove(self) -> None:
        """Take the file away: nobody will write to it any more."""
        self._file.close()
        os.unlink(files.path_of("beat"))

    def _count_collectives(self) -> tuple[int, int]:
        """Count anew unless that was dear a moment ago: it grows with the groups ever made.

        Each time, torch makes a text of about 1 KB for each of them. From some hundreds on that are
        gone, the ops of the op log are counted in place of it, as where there is no recorder.
        """
        self._is_left_out = progress.COUNTS.recorded > 0 and recorders.count_gone() > _MAX_GONE
        if self._is_left_out:
            return 0, 0
        begin_ns = time.monotonic_ns()
        if begin_ns >= self._due_ns:
            used_ns = time.thread_time_ns()
            self._counted = read_group_status()
            used_ns = time.thread_time_ns() - used_ns
            self._due_ns = begin_ns + min(int(used_ns / _MAX_SHARE), _MAX_REST_NS)
        return self._counted

    def _count_recorded(self) -> int:
        """Return the ops of the op log where torch's recorder is off, or is not asked.

        Without an op log nothing tells whether the rank communicates. The number grows with each
        beat then, so that nobody takes the rank for one that stands still.
        """
        if not (self._is_left_out or names.is_recorder_off()):
            return 0
        recorded = progress.COUNTS.recorded
        return recorded if recorded >= 0 else self._count

    def write(self, rank: int, world_size: int) -> None:
        """Write the counters; the reader takes a slot whose two counts agree."""
        self._has_group = self._has_group or recorders.has_group()
        enqueued, completed = self._count_collectives() if self._has_group else (0, 0)
        self._count += 1
        record = LAYOUT.pack(
            MAGIC,
            self._count,
            time.monotonic_ns(),
            time.time_ns(),
            rank,
            world_size,
            progress.COUNTS.optimizer_steps,
            enqueued,
            completed,
            progress.COUNTS.p2p_sent,
            progress.COUNTS.p2p_received,
            self._count,
            progress.COUNTS.replays,
            0 if enqueued else self._count_recorded(),
            self._collector,
        )
        os.pwrite(self._file.fd, record, 0)


def read_group_status() -> tuple[int, int]:
    """Return how many collectives this rank has enqueued and completed, over all groups."""
    found = [recorder.count_collectives() for recorder in recorders.list_recorders()]
    return sum(enqueued for enqueued, _ in found), sum(completed for _, completed in found)
