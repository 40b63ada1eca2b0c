"""Logs of NCCL's inspector plugin: a JSON object in each line, of one process.

Up to format 4.2 each line names its communicator. From 4.3 on one line begins what a communicator
dumps, with the number of ops that follow, and those are bare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.ops.nccl_inspector import NcclComm, NcclLog
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.errors import ParseError

# 192 MiB, the largest file that is read, has 500,000 ops.
MAX_OPS = 1_000_000
# With the events of 64 channels a line has 20 KB.
_MAX_LINE_BYTES = 1 << 16
_MAX_COMMS = 4096
_MAX_KINDS = 64

_Count = Annotated[int, Meta(ge=0, le=1 << 61)]
_Size = Annotated[int, Meta(ge=1, le=MAX_RANK + 1)]
_Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
_Name = Annotated[str, Meta(max_length=64)]
_Time = Annotated[float, Meta(ge=0, le=1e15)]

# What the op log calls them, and whether the inspector tells the part of one rank as their size.
_OPS = {
    "AllReduce": ("all_reduce", False),
    "AllGather": ("all_gather", True),
    "ReduceScatter": ("reduce_scatter", True),
    "Broadcast": ("broadcast", False),
    "Reduce": ("reduce", False),
    "Send": ("send", False),
    "Recv": ("recv", False),
}
# This is how long the call took on the host.
_HOST_TIME = "collective_cpu"


class _Header(msgspec.Struct):
    id: _Name
    rank: _Rank
    n_ranks: _Size


class _Origin(msgspec.Struct):
    hostname: Annotated[str, Meta(max_length=256)] = ""
    pid: _Count = 0


class _Stats(msgspec.Struct):
    coll_records: _Count = 0
    p2p_records: _Count = 0
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Coll(msgspec.Struct):
    coll: _Name
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Time
    coll_timing_source: _Name = ""


class _Transfer(msgspec.Struct):
    p2p: _Name
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Time
    p2p_timing_source: _Name = ""


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Origin | None = None
    dump_stats: _Stats | None = None
    coll_perf: _Coll | None = None
    p2p_perf: _Transfer | None = None


_DECODER = json_decoder(_Record)


def parse_nccl_inspector(data: bytes, *, artifact: str = "") -> NcclLog:
    """Read a log of NCCL's inspector.

    Args:
        data: The file; its last line may be cut.
        artifact: The path to cite.

    Returns:
        The ops in it.

    Raises:
        ParseError: No line of it is a record of the inspector.
    """
    reader = _Reader()
    for line in _split(data):
        reader.read(line)
    if not reader.sound:
        raise ParseError("no record of NCCL's inspector")
    columns = np.array(reader.rows, dtype=np.int64).reshape(-1, 5).T
    comm, op, number, size_bytes, time_us = columns
    return NcclLog(
        comms=tuple(reader.comms),
        ops=tuple(reader.kinds),
        comm=comm,
        op=op,
        number=number,
        size_bytes=size_bytes,
        time_us=time_us,
        dropped=reader.left_out + sum(reader.dropped.values()),
        broken=reader.broken,
        artifact=artifact,
    )


def _split(data: bytes) -> Iterator[bytes]:
    """Yield the lines that are not empty, without a copy of all of them."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if line := data[start:end].strip():
            yield line
        start = end + 1


@dataclass
class _Reader:
    """Reads line by line; ``current`` and ``left`` are what bare records belong to."""

    comms: dict[NcclComm, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    dropped: dict[int, int] = field(default_factory=dict)
    current: int = -1
    left: list[int] = field(default_factory=lambda: [0, 0])
    sound: int = 0
    broken: int = 0
    left_out: int = 0

    def read(self, line: bytes) -> None:
        if len(line) > _MAX_LINE_BYTES:
            self.broken += 1
            return
        try:
            self._take(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ParseError):
            self.broken += 1
            return
        self.sound += 1

    def _take(self, record: _Record) -> None:
        if record.dump_stats is not None:
            self.current, self.left = -1, [0, 0]
        if record.header is not None:
            place = self._find_comm(record.header, record.metadata or _Origin())
        else:
            place = self._count_bare(record)
        if record.dump_stats is not None:
            stats = record.dump_stats
            self.current, self.left = place, [stats.coll_records, stats.p2p_records]
            # Totals grow: the last one counts.
            self.dropped[place] = stats.coll_dropped_total + stats.p2p_dropped_total
        if record.coll_perf is not None:
            one = record.coll_perf
            time_us = -1 if one.coll_timing_source == _HOST_TIME else round(one.coll_exec_time_us)
            self._add(place, one.coll, one.coll_sn, one.coll_msg_size_bytes, time_us)
        elif record.p2p_perf is not None:
            two = record.p2p_perf
            time_us = -1 if two.p2p_timing_source == _HOST_TIME else round(two.p2p_exec_time_us)
            self._add(place, two.p2p, two.p2p_sn, two.p2p_msg_size_bytes, time_us)

    def _find_comm(self, header: _Header, origin: _Origin) -> int:
        comm = NcclComm(header.id, header.rank, header.n_ranks, origin.hostname, origin.pid)
        if comm not in self.comms and len(self.comms) >= _MAX_COMMS:
            raise ParseError("more communicators than any process has")
        if comm not in self.comms:
            self.comms[comm] = len(self.sizes)
            self.sizes.append(comm.size)
        return self.comms[comm]

    def _count_bare(self, record: _Record) -> int:
        """Return the communicator of a record that names none, and count it."""
        kind = 0 if record.coll_perf is not None else 1
        is_other = record.coll_perf is None and record.p2p_perf is None
        if self.current < 0 or is_other or not self.left[kind]:
            raise ParseError("a record of no communicator")
        self.left[kind] -= 1
        return self.current

    def _add(self, comm: int, name: str, number: int, size_bytes: int, time_us: int) -> None:
        if len(self.rows) >= MAX_OPS:
            self.left_out += 1
            return
        op, is_part = _OPS.get(name, (name, False))
        if op not in self.kinds and len(self.kinds) >= _MAX_KINDS:
            raise ParseError("more kinds of ops than NCCL has")
        kind = self.kinds.setdefault(op, len(self.kinds))
        if is_part:
            size_bytes = min(size_bytes * self.sizes[comm], 1 << 61)
        self.rows.append((comm, kind, number, size_bytes, time_us))
