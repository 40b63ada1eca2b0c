from __future__ import annotations

import msgspec
import pytest

from whystuck.evidence.nodes.records import (
    ClaimEntry,
    ClaimsRecord,
    GroupMemory,
    HostEntry,
    HostRecord,
    MemoryRecord,
    Volume,
)
from whystuck.parse import node_records
from whystuck.parse.errors import ParseError


def test_memory_becomes_a_series() -> None:
    record = MemoryRecord(pid=7, node="n1", points=[(1, 2, 3, 4), (5, 6, 7, 8)], address_limit=9)
    series = node_records.parse_memory(msgspec.json.encode(record), rank=3, artifact="a")
    assert (series.rank, series.pid, series.node, series.artifact) == (3, 7, "n1", "a")
    assert (series.points[1].time_ns, series.points[1].rss) == (5, 6)
    assert (series.points[1].virtual, series.points[1].below) == (7, 8)
    assert (series.address_limit, series.data_limit, series.worker_pids) == (9, 0, ())


def test_host_becomes_two_states() -> None:
    group = GroupMemory(path="/job", version=1, limit=5, oom_kills=1)
    record = HostRecord(
        node="n1",
        start=HostEntry(time_ns=1, memory=10),
        end=HostEntry(time_ns=2, oom_kills=3, groups=(group,), volumes=(Volume(path="/x"),)),
    )
    start, end = node_records.parse_host(msgspec.json.encode(record), artifact="a")
    assert (start.node, start.moment, start.memory, start.oom_kills) == ("n1", "start", 10, -1)
    assert (end.moment, end.oom_kills, end.volumes[0].path) == ("end", 3, "/x")
    assert (end.groups[0].path, end.groups[0].limit, end.groups[0].oom_kills) == ("/job", 5, 1)
    assert node_records.parse_host(b"{}", artifact="a") == ()


def test_claims_become_rows() -> None:
    claims = [
        ClaimEntry(rank=1, pid=10, world_size=4, environment={"WORLD_SIZE": "4", "RANK": "1"}),
        ClaimEntry(rank=1, pid=11, world_size=5, code=1, ended_ns=9),
    ]
    data = msgspec.json.encode(ClaimsRecord(node="n1", claims=claims))
    first, second = node_records.parse_claims(data, artifact="a")
    assert (first.rank, first.pid, first.row, first.node) == (1, 10, 0, "n1")
    assert first.environment == {"RANK": "1", "WORLD_SIZE": "4"}
    assert (second.world_size, second.code, second.signal, second.ended_ns) == (5, 1, None, 9)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"points": [[1, 2]], "start": 1, "claims": [1]}', b"\xff\x00"]
)
def test_broken_records_are_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        node_records.parse_memory(data, rank=0, artifact="a")
    with pytest.raises(ParseError):
        node_records.parse_host(data, artifact="a")
    with pytest.raises(ParseError):
        node_records.parse_claims(data, artifact="a")
