"""The JSON artifacts of an evidence folder that tell of a node, or of memory.

As in `records`: unknown keys are ignored, missing ones take their default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from whystuck.evidence.nodes.checks import CHECKS_FILE
from whystuck.evidence.nodes.devices import DEVICES_FILE
from whystuck.evidence.nodes.ras import RAS_JSON_FILE, RAS_TEXT_FILE

MEMORY_FILE = "memory.json"
CPU_FILE = "cpu.json"
GARBAGE_FILE = "garbage.json"
HOST_FILE = "host.json"
CLAIMS_FILE = "ranks.json"
KERNEL_LOG_FILE = "kernel.log"
# Files of a node, which belong to no rank.
NODE_FILES = frozenset(
    {HOST_FILE, CLAIMS_FILE, RAS_JSON_FILE, RAS_TEXT_FILE, DEVICES_FILE, CHECKS_FILE}
)


class MemoryRecord(msgspec.Struct, kw_only=True):
    """``memory.json``: the memory of one rank, in bytes; a limit of 0 is none.

    A point is the time in nanoseconds, resident and virtual memory of the process, and what its
    children hold.
    """

    pid: int = 0
    node: str = ""
    points: list[tuple[int, int, int, int]] = []
    peak: int = 0
    address_limit: int = 0
    data_limit: int = 0
    rss_limit: int = 0
    worker_pids: list[int] = []
    cgroup: str = ""


class CpuRecord(msgspec.Struct, kw_only=True):
    """``cpu.json``: what processors the main thread of one rank got.

    A point is a time, and how long the thread had run, had waited in the run queue, and its cgroup
    had been stopped by its quota by then, in nanoseconds; the last is -1 when unknown. In
    ``stopped`` of all ``looks`` a signal had stopped the process; ``resumed`` is how often it went
    on behind one. In ``demand_over_ns``, all its threads together ran, or waited to run, for
    ``demand_ns``, and those that did so for a thirtieth of the time were there for ``busy_ns``; it
    may run on so many ``cores``, 0 when unknown.
    """

    pid: int = 0
    node: str = ""
    points: list[tuple[int, int, int, int]] = []
    cgroup: str = ""
    looks: int = 0
    stopped: int = 0
    resumed: int = 0
    demand_ns: int = 0
    busy_ns: int = 0
    demand_over_ns: int = 0
    cores: int = 0


class GarbageRecord(msgspec.Struct, kw_only=True):
    """``garbage.json``: how often one rank was seen in a full collection of garbage.

    A point is a time in nanoseconds, how often somebody had looked by then, how often a full
    collection ran at that moment, and how many there had been.
    """

    pid: int = 0
    node: str = ""
    points: list[tuple[int, int, int, int]] = []


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """A memory cgroup of the job, or one above it that has a limit; sizes in bytes.

    ``limit`` is 0 when there is none. ``oom_kills`` counts the processes that the kernel has ended
    in it so far, ``limit_hits`` how often it was full; -1 when unknown. ``version`` is 1 or 2.
    """

    path: str = ""
    version: int = 0
    limit: int = 0
    used: int = 0
    peak: int = 0
    oom_kills: int = -1
    limit_hits: int = -1


@dataclass(frozen=True, slots=True)
class Volume:
    """The room of a file system; sizes in bytes, ``files_free`` in inodes, -1 when it has none.

    ``lowest`` is the least that was free since the round began, -1 when nobody looked: what ranks
    hold in /dev/shm is gone when they are.
    """

    path: str = ""
    size: int = 0
    free: int = 0
    files_free: int = -1
    lowest: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """A node at one moment; sizes in bytes.

    ``oom_kills`` counts the processes that the kernel of this machine has ended since it was
    booted, in any cgroup; -1 when unknown.
    """

    time_ns: int = 0
    memory: int = 0
    available: int = 0
    swap: int = 0
    swap_free: int = 0
    oom_kills: int = -1
    groups: tuple[GroupMemory, ...] = ()
    volumes: tuple[Volume, ...] = ()


class HostRecord(msgspec.Struct, kw_only=True):
    """``host.json``: the node when the round began, and when the evidence was taken."""

    node: str = ""
    start: HostEntry | None = None
    end: HostEntry | None = None


@dataclass(frozen=True, kw_only=True)
class ClaimEntry:
    """A process that said it is a rank; two that live at one time may claim the same.

    Attributes:
        rank: What it said.
        pid: The process.
        world_size: The number of ranks as it knows it, 0 when unknown.
        local_rank: Its number on the node, -1 when unknown.
        is_member: Whether it has made a process group, rather than only been told its rank.
        attempt: The launcher's attempt, from 0.
        began_ns: When it first spoke.
        ended_ns: When its end was seen, 0 when it was not.
        code: Its exit code, None when it has none or it was not seen.
        signal: The signal that ended it, None when none did or it was not seen.
        parent_pid: Who started it, 0 when unknown.
        parent: The name of that program, empty when unknown.
        environment: Its variables about the rendezvous, e.g. ``MASTER_ADDR``.
    """

    rank: int = -1
    pid: int = 0
    world_size: int = 0
    local_rank: int = -1
    is_member: bool = False
    attempt: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    code: int | None = None
    signal: int | None = None
    parent_pid: int = 0
    parent: str = ""
    environment: dict[str, str] = field(default_factory=dict)


class ClaimsRecord(msgspec.Struct, kw_only=True):
    """``ranks.json``: all processes of a node that said they are ranks, oldest first."""

    node: str = ""
    claims: list[ClaimEntry] = []
