"""The heartbeat: a few counters in a small file that any process of the same user can read.

It is written, not mapped: a page of a mapped file that a full disk cannot hold is a SIGBUS.

The layout is read by ``whystuck.collect.beats``; a new field goes to the end.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time

from . import files, progress

MAGIC = b"WSBEAT01"
LAYOUT = struct.Struct("=8sQQQqqqqqqqQ")


class Beat:
    """The slot of this process, written once a second by the probe's thread."""

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(files.path_of("beat"), flags, 0o600)
        self._count = 0

    def write(self, rank: int, world_size: int) -> None:
        """Write the counters; the reader takes a slot whose two counts agree."""
        enqueued, completed = read_group_status()
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
        )
        os.pwrite(self._fd, record, 0)


def read_group_status() -> tuple[int, int]:
    """Return how many collectives this rank has enqueued and completed, over all groups.

    The recorder's dump without entries is some 200 bytes and costs about 0.05 ms.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return 0, 0
    enqueued = completed = 0
    for status in json.loads(dump(False, False)).get("pg_status", {}).values():
        enqueued += max(0, int(status.get("last_enqueued_collective", 0)))
        completed += max(0, int(status.get("last_completed_collective", 0)))
    return enqueued, completed
