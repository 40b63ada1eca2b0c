"""The JSON artifacts of nodes and of memory, as the tables that rules read."""

from __future__ import annotations

import msgspec

from whystuck.evidence.nodes.devices import DevicesRecord, DeviceState
from whystuck.evidence.nodes.records import ClaimsRecord, HostEntry, HostRecord, MemoryRecord
from whystuck.evidence.nodes.resources import (
    GroupMemory,
    HostState,
    MemoryPoint,
    MemorySeries,
    RankClaim,
    Volume,
)
from whystuck.parse.records import decode_record

_asdict = msgspec.structs.asdict


def parse_memory(data: bytes, *, rank: int, artifact: str) -> MemorySeries:
    """Read ``memory.json`` of a rank."""
    record = decode_record(data, MemoryRecord)
    return MemorySeries(
        rank=rank,
        pid=record.pid,
        node=record.node,
        points=tuple(MemoryPoint(*point) for point in record.points),
        peak=record.peak,
        address_limit=record.address_limit,
        data_limit=record.data_limit,
        rss_limit=record.rss_limit,
        worker_pids=tuple(record.worker_pids),
        cgroup=record.cgroup,
        artifact=artifact,
    )


def parse_host(data: bytes, *, artifact: str) -> tuple[HostState, ...]:
    """Read ``host.json`` of a node: its states, the older one first."""
    record = decode_record(data, HostRecord)
    moments = (("start", record.start), ("end", record.end))
    return tuple(
        _make_state(record.node, moment, entry, artifact)
        for moment, entry in moments
        if entry is not None
    )


def _make_state(node: str, moment: str, entry: HostEntry, artifact: str) -> HostState:
    return HostState(
        node=node,
        moment=moment,
        time_ns=entry.time_ns,
        memory=entry.memory,
        available=entry.available,
        swap=entry.swap,
        swap_free=entry.swap_free,
        oom_kills=entry.oom_kills,
        groups=tuple(GroupMemory(**_asdict(group)) for group in entry.groups),
        volumes=tuple(Volume(**_asdict(volume)) for volume in entry.volumes),
        artifact=artifact,
    )


def parse_claims(data: bytes, *, artifact: str) -> tuple[RankClaim, ...]:
    """Read ``ranks.json`` of a node."""
    record = decode_record(data, ClaimsRecord)
    return tuple(
        RankClaim(
            **(_asdict(entry) | {"environment": tuple(sorted(entry.environment.items()))}),
            node=record.node,
            artifact=artifact,
            row=row,
        )
        for row, entry in enumerate(record.claims)
    )


def parse_devices(data: bytes, *, artifact: str) -> tuple[DeviceState, ...]:
    """Read ``devices.json`` of a node: a row for each device."""
    record = decode_record(data, DevicesRecord)
    return tuple(
        DeviceState(record.node, entry, artifact, row) for row, entry in enumerate(record.devices)
    )
