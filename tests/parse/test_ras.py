"""Answers of NCCL's RAS: text of old and new versions, JSON, and what is none."""

from __future__ import annotations

import json

import pytest
from tests.parse.ras_answers import HASH, make_json, make_late_text, make_missing, make_text

from whystuck.evidence.nodes.ras import RasCount, RasError, RasMember, RasProcess
from whystuck.parse.errors import ParseError
from whystuck.parse.ras import MAX_BYTES, parse_ras
from whystuck.read.sniffing import Kind, sniff

LATE = RasMember(1, 101, "127.0.0.1")
TRANSCRIPT = b"SERVER PROTOCOL 2\nOK\nERROR: Unknown command set format json\n"


@pytest.mark.parametrize("kind", ["AllReduce", "collective"])
def test_text_tells_counts_that_differ(kind: str) -> None:
    status = parse_ras(make_late_text(kind=kind), artifact="n0/ras.txt")
    (comm,) = status.comms

    assert (status.version, status.comms_seen, status.artifact) == ("2.28.3", 1, "n0/ras.txt")
    assert (comm.hash, comm.size) == (f"0x{HASH}", 4)
    assert comm.counts == (RasCount(kind, 41, 3), RasCount(kind, 40, 1, (LATE,)))
    assert not status.is_even


def test_text_names_all_of_a_few() -> None:
    warnings = (
        "#0-0 (00db921d1c117b4a) MISMATCH\n"
        "  Communicator ranks have different AllGather operation counts\n"
        "  6 ranks have launched up to operation 7\n"
        "  2 ranks have not launched any operations\n"
        "  Rank 3 -- GPU 1 (NVML 3) managed by process 33 on node fe80::1\n"
        "  Rank 5 -- [process information not found]\n\n"
    )
    (comm,) = parse_ras(make_text(warnings=warnings, size=8, state="MISMATCH")).comms

    members = (RasMember(3, 33, "fe80::1"), RasMember(5))
    assert comm.hash == "0xdb921d1c117b4a"
    assert comm.counts[1] == RasCount("AllGather", 0, 2, members)


def test_text_tells_who_is_missing_and_dead() -> None:
    errors = (
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 21 on node 10.0.0.2 managing GPU 0\n\n"
        "DEAD\n  2 job processes are considered dead (unreachable via the RAS network)\n"
        "  Process 22 on node 10.0.0.2 managing GPU 1\n"
        "  Process 23 on node 10.0.0.2 managing GPUs 2,3\n\n"
        f"#0-0 ({HASH}) INCOMPLETE\n  Missing communicator data from 3 ranks\n"
        "  Rank 1 -- GPU 0 managed by process 21 on node 10.0.0.2\n"
        "  Rank 2 -- GPU 1 managed by process 22 on node 10.0.0.2\n"
        "  Rank 3 -- GPU 2 managed by process 23 on node 10.0.0.2\n\n"
    )
    warnings = (
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n"
    )
    status = parse_ras(make_text(errors, warnings, state="INCOMPLETE"))

    assert (status.silent, status.dead, status.timeouts) == (1, 2, 2)
    assert [one.pid for one in status.processes if one.is_dead] == [22, 23]
    assert [one.pid for one in status.comms[0].missing] == [21, 22, 23]


def test_text_tells_errors_and_ranks_that_left() -> None:
    errors = (
        f"#0-0 ({HASH}) ERROR\n  Initialization error on 1 rank\n"
        "  Rank 0 reported Internal error -- GPU 0 managed by process 7 on node 10.0.0.1\n"
        "  Asynchronous errors on 2 ranks\n  2 ranks reported Remote process error\n"
        "  Rank 1 -- GPU 1 managed by process 8 on node 10.0.0.1\n"
        "  Rank 2 -- GPU 2 managed by process 9 on node 10.0.0.1\n\n"
    )
    warnings = (
        f"#0-0 ({HASH}) MISMATCH\n  Communicator ranks have different status\n"
        "  3 ranks have status RUNNING\n"
        "  Rank 3 has status NOCOMM -- GPU 3 managed by process 10 on node 10.0.0.1\n"
    )
    (comm,) = parse_ras(make_text(errors, warnings, state="ERROR,MISMATCH")).comms

    assert comm.errors[0] == RasError("Internal error", False, 1, (RasMember(0, 7, "10.0.0.1"),))
    assert comm.errors[1].is_async
    assert [one.pid for one in comm.errors[1].members] == [8, 9]
    assert comm.absent == (RasMember(3, 10, "10.0.0.1"),)
    assert comm.counts == ()


def test_json_tells_the_same() -> None:
    missing = [make_missing(4, 21), make_missing(5, 22, dead=True)]
    status = parse_ras(make_json([41, 40, 41, 41], missing=missing, async_errors={2: 2, 3: 7}))
    (comm,) = status.comms

    assert comm.counts[1] == RasCount("AllReduce", 40, 1, (LATE,))
    assert [count.issued for count in comm.counts] == [41, 40]
    assert comm.errors == (RasError("System error", True, 1, (RasMember(2, 102, "127.0.0.1"),)),)
    assert [one.rank for one in comm.missing] == [4, 5]
    assert RasProcess(22, "10.0.0.2", is_dead=True) in status.processes
    assert (status.dead, status.silent) == (1, 1)


@pytest.mark.parametrize("data", [make_text(comms=3), make_json([41] * 4)])
def test_job_whose_ranks_came_as_far_as_each_other(data: bytes) -> None:
    status = parse_ras(data)

    assert status.is_even
    assert status.comms == ()


@pytest.mark.parametrize("data", [make_late_text(), make_json([41, 40, 41, 41])])
@pytest.mark.parametrize("name", ["pasted", "a.log", "x.json", "rank_dump"])
def test_answers_are_told_from_other_files(name: str, data: bytes) -> None:
    for one in (data, TRANSCRIPT + data, (TRANSCRIPT + data).replace(b"\n", b"\r\n")):
        assert sniff(name, one) is Kind.RAS
        assert len(parse_ras(one).comms) == 1


def test_log_of_nccl_is_no_answer() -> None:
    line = b"n0:1:1 [0] NCCL INFO NCCL version 2.28.3 compiled with CUDA 12.9\n"

    assert sniff("train.log", line) is Kind.LOG
    assert sniff("train.log", b"NCCL version 2.21.5+cuda12.4\nJob summary\n") is Kind.LOG


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b"{" * 100_000,
        b'{"nccl_version": "2", "communicators": ' + b"[" * 100_000,
        make_late_text()[:-200],
        make_late_text().partition(b"Warnings")[0],
        make_json([41, 40])[:-20],
        b'{"nccl_version": "2.28.7", "communicators": [{"hash": 5}]}',
        b'{"nccl_version": "2.28.7", "communicators": [' + b"{}," * 9_000_000,
        b" " * (MAX_BYTES + 1),
    ],
)
def test_what_is_cut_or_no_answer_is_refused(data: bytes) -> None:
    if b"Warnings" in data:
        assert parse_ras(data).comms_seen == 1  # a line less is no harm
        return
    with pytest.raises(ParseError):
        parse_ras(data)


def test_numbers_of_any_size_are_only_numbers() -> None:
    answer = json.loads(make_json([41, 40]))
    answer["communicators"][0]["ranks"][0]["collective_counts"]["AllReduce"] = 2**64 - 1
    (comm,) = parse_ras(json.dumps(answer).encode()).comms

    assert {one.issued for one in comm.counts} == {2**64 - 1, 40}


@pytest.mark.parametrize(
    ("listed", "ranks"), [("rank: 21", [21]), ("ranks: 5, 21", [5, 21]), ("ranks: many", [])]
)
def test_text_that_lists_missing_ranks_in_one_line(listed: str, ranks: list[int]) -> None:
    errors = (
        "#0-0 (00db921d1c117b4a) INCOMPLETE\n"
        f"  Missing communicator data from {max(1, len(ranks))} rank\n  The missing {listed}\n\n"
    )
    (comm,) = parse_ras(make_text(errors=errors, size=32, state="INCOMPLETE")).comms

    assert [one.rank for one in comm.missing] == ranks
