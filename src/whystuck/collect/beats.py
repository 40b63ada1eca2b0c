"""Reading the heartbeat that the probe writes once a second."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from whystuck.guarded.folders import folder_at, open_file, read_file

_ANY_MAGIC = b"WSBEAT"
# The version of the layout is in it: another one is not read.
MAGIC = b"WSBEAT01"
# The layout of whystuck.probe.beat.
LAYOUT = struct.Struct("=8sQQQqqqqqqqQ")
# What slots of newer probes have behind it.
_LATER = struct.Struct("=q")
_LATER_FIELDS = ("replays", "recorded", "collector")
_MOST_BYTES = LAYOUT.size + _LATER.size * len(_LATER_FIELDS)


@dataclass(frozen=True)
class BeatSlot:
    """The counters of one rank at its last beat; times of this node's clocks."""

    monotonic_ns: int
    wall_ns: int
    rank: int
    world_size: int
    optimizer_steps: int
    enqueued: int
    completed: int
    p2p_sent: int
    p2p_received: int
    replays: int = 0
    # Ops in the op log; counted where torch's recorder is off.
    recorded: int = 0
    # The address of the counts of its garbage collector, see `whystuck.probe.collector`.
    collector: int = 0

    @property
    def age_s(self) -> float:
        """Seconds since this beat."""
        return max(0.0, (time.monotonic_ns() - self.monotonic_ns) / 1e9)

    @property
    def progress(self) -> tuple[int, ...]:
        """The counters that grow while the rank moves."""
        return (
            self.enqueued,
            self.completed,
            self.optimizer_steps,
            self.p2p_sent,
            self.p2p_received,
            self.replays,
            self.recorded,
        )

    @property
    def has_communicated(self) -> bool:
        """Whether this rank has issued any collective, send or receive."""
        return any(
            count > 0 for count in (self.enqueued, self.p2p_sent, self.p2p_received, self.recorded)
        )


def parse_beat(data: bytes) -> BeatSlot | None:
    """Return what a slot holds; None when it is no slot, or was being written."""
    if len(data) < LAYOUT.size:
        return None
    magic, first, mono_ns, wall_ns, *counters, last = LAYOUT.unpack_from(data)
    if magic != MAGIC or first != last:
        return None
    count = min(len(data) - LAYOUT.size, _MOST_BYTES - LAYOUT.size) // _LATER.size
    later = [_LATER.unpack_from(data, LAYOUT.size + _LATER.size * i)[0] for i in range(count)]
    known = dict(zip(_LATER_FIELDS, later, strict=False))
    return BeatSlot(mono_ns, wall_ns, *counters, **known)


def explain_no_beat(path: Path) -> str:
    """Return why a heartbeat cannot be read."""
    try:
        with folder_at(path.parent) as folder:
            head, _ = read_file(folder, path.name, len(MAGIC), uid=os.fstat(folder).st_uid)
    except OSError:
        return "no probe in this process"
    if head.startswith(_ANY_MAGIC) and head != MAGIC:
        number = head[len(_ANY_MAGIC) :].decode("ascii", "replace")
        return f"its probe is of another version of whystuck (heartbeats of version {number})"
    return "its heartbeat cannot be read"


def read_beat(path: Path) -> BeatSlot | None:
    """Read a slot; None when there is none, or when it was being written each time we looked.

    Links are not followed, and what somebody laid in its place, such as a pipe, holds nobody up.
    """
    try:
        with folder_at(path.parent) as folder:
            return read_beat_in(folder, path.name)
    except OSError:
        return None


def read_beat_in(folder: int, name: str) -> BeatSlot | None:
    """Read a slot in an open folder, whose owner's it must be; None as for `read_beat`."""
    try:
        descriptor = open_file(folder, name, uid=os.fstat(folder).st_uid)
    except OSError:
        return None
    try:
        for _ in range(3):
            if (slot := parse_beat(os.pread(descriptor, _MOST_BYTES, 0))) is not None:
                return slot
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None
