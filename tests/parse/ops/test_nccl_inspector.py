"""Logs of NCCL's inspector plugin, of two formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.parse.ops.nccl_logs import HASH, make_head, make_log, make_op, make_transfer

from whystuck.evidence.ops.nccl_inspector import NcclComm
from whystuck.parse.errors import ParseError
from whystuck.parse.ops import nccl_inspector
from whystuck.parse.ops.nccl_inspector import parse_nccl_inspector
from whystuck.read.sniffing import Kind, sniff
from whystuck.read.tree import read_tree

FORMATS = ["v4.0", "v4.3"]


@pytest.mark.parametrize("version", FORMATS)
def test_both_formats_tell_the_same(version: str) -> None:
    ops = [make_op(), make_op("AllGather", number=7, size=1024, time_us=31.6), make_transfer()]
    log = parse_nccl_inspector(make_log(*ops, version=version, rank=1), artifact="a.log")

    assert log.comms == (NcclComm(HASH, 1, 2, "n0", 101),)
    assert log.ops == ("all_reduce", "all_gather", "send")
    assert log.number.tolist() == [1, 7, 1]
    # An all_gather is as large as what it gets of all.
    assert log.size_bytes.tolist() == [1 << 20, 2048, 4096]
    assert log.time_us.tolist() == [500, 32, 40]
    assert (log.dropped, log.broken, log.artifact) == (0, 0, "a.log")


@pytest.mark.parametrize("version", FORMATS)
def test_log_that_is_cut_is_read_up_to_there(version: str) -> None:
    data = make_log(make_op(number=1), make_op(number=2), version=version)
    log = parse_nccl_inspector(data[:-9])

    assert (log.number.tolist(), log.broken) == ([1], 1)


def test_time_of_the_host_is_none_of_the_device() -> None:
    log = parse_nccl_inspector(make_log(make_op(coll_timing_source="collective_cpu")))

    assert log.time_us.tolist() == [-1]


def test_what_is_dropped_counts_by_its_last_total() -> None:
    first = make_log(make_op(number=1), version="v4.3", dropped=3)
    last = make_log(make_op(number=9), version="v4.3", dropped=5)

    assert parse_nccl_inspector(first + last).dropped == 5


def test_stats_of_4_1_come_before_lines_that_tell_whose_they_are() -> None:
    stats = make_head("v4.1") | {"dump_stats": {"coll_records": 1}}
    data = json.dumps(stats).encode() + b"\n" + make_log(make_op())

    assert len(parse_nccl_inspector(data)) == 1


def test_bare_ops_beyond_what_was_told_belong_to_nobody() -> None:
    data = make_log(make_op(number=1), version="v4.3") + json.dumps(make_op(number=2)).encode()
    log = parse_nccl_inspector(data)

    assert (log.number.tolist(), log.broken) == ([1], 1)


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"[" * 50_000,
        b'{"header":' * 20_000,
        b'{"a":"' + b"x" * 70_000 + b'"}',
        json.dumps(make_op()).encode(),
        json.dumps(make_head("v4.0", size=0) | make_op()).encode(),
        json.dumps(make_head("v4.0", rank=-1) | make_op()).encode(),
        json.dumps(make_head("v4.0", size=1 << 40) | make_op()).encode(),
        json.dumps(make_head("v4.0") | make_op(size=1 << 62)).encode(),
        json.dumps(make_head("v4.0") | make_op(number=-1)).encode(),
        json.dumps(make_head("v4.0") | make_op(time_us=1e300)).encode(),
        json.dumps(make_head("v4.0") | make_op(op="x" * 65)).encode(),
        json.dumps(make_head("v4.0")).replace("v4.0", "\udc80").encode("utf-8", "surrogateescape"),
    ],
)
def test_lines_of_others_and_hostile_ones_are_passed_over(line: bytes) -> None:
    log = parse_nccl_inspector(make_log(make_op()) + line + b"\n" + make_log(make_op(number=2)))

    assert log.number.tolist() in ([1, 2], [1])
    assert log.broken <= 1
    assert len(log) + log.broken >= 2


def test_file_without_a_record_is_refused() -> None:
    with pytest.raises(ParseError):
        parse_nccl_inspector(b"{}x\n" * 50)


def test_more_ops_kinds_and_communicators_than_any_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl_inspector, "MAX_OPS", 10)
    ops = [make_op(number=number) for number in range(12)]
    kinds = [make_op(op=f"k{number}") for number in range(80)]
    comms = b"".join(make_log(make_op(), name=f"0x{number:x}") for number in range(4100))

    assert (len(one := parse_nccl_inspector(make_log(*ops))), one.dropped) == (10, 2)
    monkeypatch.setattr(nccl_inspector, "MAX_OPS", 100_000)
    assert (len(one := parse_nccl_inspector(make_log(*kinds))), one.broken) == (64, 16)
    assert (len(one := parse_nccl_inspector(comms)), one.broken) == (4096, 4)


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("name", ["n0-pid100.log", "x.jsonl", "rank_0"])
def test_it_is_told_from_other_files_by_its_content(name: str, version: str) -> None:
    data = make_log(make_op(), version=version)

    assert sniff(name, data) is Kind.NCCL_LOG
    assert sniff(name, data.replace(b":", b": ").replace(b",", b", ")) is Kind.NCCL_LOG


def test_gaps_tell_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(make_log(make_op(), version="v4.3", dropped=4) + b"x\n")
    evidence = read_tree([tmp_path], tmp_path, None)

    assert evidence is not None
    assert [gap.reason for gap in evidence.gaps if "inspector" in gap.what] == [
        "a.log: 1 lines cannot be read",
        "a.log: 4 ops are missing",
    ]
