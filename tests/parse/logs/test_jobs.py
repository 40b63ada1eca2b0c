"""Logs of one job are joined: whose each line is, where it was written, in which attempt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parse.logs.jobs import read_files, read_job

from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogFile
from whystuck.parse.logs.compiled import load_tables
from whystuck.parse.logs.owners.names import read_log_name
from whystuck.parse.logs.parts import MAX_TEXTS
from whystuck.parse.logs.reader import read_log

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4105, GPU has fallen off the bus."
COMM = "n{n}:{p}:9 [{l}] NCCL INFO comm 0x5 rank {r} nranks {w} cudaDev {l} busId {b} - Init\n"


def comm(rank: int, world: int = 8, pid: int = 0) -> str:
    return COMM.format(n=rank // 4, p=pid or 100 + rank, r=rank, w=world, l=rank % 4, b="9b000")


@pytest.mark.parametrize(
    ("name", "rank", "attempt"),
    [
        ("rank-3.log", 3, 0),
        ("rank_3.out.gz", 3, 0),
        ("logs/rank3/stderr.log", 3, 0),
        ("nccl_rank=3.log.2", 3, 0),
        ("run/attempt_1/rank_3.log", 3, 1),
        ("slurm-123.out", UNKNOWN_RANK, 0),
        ("slurm-123_4.out", UNKNOWN_RANK, 0),
        ("train-20260402.log", UNKNOWN_RANK, 0),
        ("job.pid4711.log", UNKNOWN_RANK, 0),
        ("train.log", UNKNOWN_RANK, 0),
        ("node1.log", UNKNOWN_RANK, 0),
    ],
)
def test_number_in_a_name_is_a_rank_only_where_it_says_so(
    name: str, rank: int, attempt: int
) -> None:
    (event,) = read_files({name: ECC}).logs.events

    assert (event.rank, event.attempt) == (rank, attempt)


@pytest.mark.parametrize(
    ("names", "rank"),
    [
        # Beside files whose lines say that the number is the rank, it is the rank.
        (("w-0.log", "w-1.log", "w-2.log"), 2),
        (("stderr_0", "stderr_1", "stderr_2"), 2),
    ],
)
def test_numbers_of_names_are_ranks_where_lines_agree(names: tuple[str, ...], rank: int) -> None:
    texts = {name: f"[rank{number}]: {ECC}" for number, name in enumerate(names[:-1])}
    events = read_files({**texts, names[-1]: ECC}).logs.events

    assert [event.rank for event in events][-1] == rank


def test_numbers_of_names_are_no_ranks_where_lines_disagree() -> None:
    events = read_files(
        {"w-0.log": f"[rank4]: {ECC}", "w-1.log": f"[rank2]: {ECC}", "w-2.log": ECC}
    ).logs.events

    assert [event.rank for event in events] == [4, 2, UNKNOWN_RANK]


def test_task_numbers_are_no_ranks_where_the_ranks_inside_differ() -> None:
    text = f"0: [rank0]: step\n1: [rank4]: step\n1: {ECC}\n"

    assert read_job(slurm=text).logs.events[0].rank == UNKNOWN_RANK
    assert read_job(slurm=f"0: x\n1: {ECC}").logs.events[0].rank == 1


def test_local_ranks_become_ranks_where_lines_tell() -> None:
    text = f"[default0]:[rank4]: step\n[default1]:[rank5]: step\n[default1]:{ECC}\n"
    other = text.replace("4", "0").replace("5", "1")

    assert [e.rank for e in read_files({"a.log": text, "b.log": other}).logs.events] == [5, 1]


def test_local_rank_of_a_second_host_is_no_rank_without_more() -> None:
    texts = {"node-n0.log": f"[default1]:{ECC}\n", "node-n1.log": f"[default1]:{ECC}\n"}

    assert {event.rank for event in read_files(texts).logs.events} == {UNKNOWN_RANK}


def test_process_of_nccl_is_that_of_the_rank_of_the_largest_communicator() -> None:
    text = comm(5) + comm(1, world=2, pid=105) + "n1:105:9 [1] init.cc:1 NCCL WARN " + ECC + "\n"

    (event,) = read_job(train=text).logs.events

    assert (event.rank, event.node, event.pid) == (5, "n1", 105)


def test_headers_of_nccl_tell_hosts_devices_and_processes() -> None:
    table = read_job(train="".join(comm(rank) for rank in range(8)))

    (file,) = table.logs.files
    assert table.world_size == 8
    assert (file.kind, file.ranks, file.world_size) == ("merged", frozenset(), 8)
    assert file.bus_by_rank[5] == "9b000"
    assert file.pid_by_rank[5] == 105


def test_log_that_says_its_rank_is_of_that_rank() -> None:
    for text in ("rank 3 of 8 on n0\n", "MASTER_PORT=1 RANK=3 WORLD_SIZE=8\n"):
        (file,) = read_files({"out.log": text + ECC}).logs.files
        assert (file.kind, file.rank, file.world_size) == ("rank", 3, 8)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("n0/dmesg.txt", "[12.500000] EXT4-fs: mounted\n" * 3 + f"[13.500000] {XID}\n", "kernel"),
        ("kern.log", f"May 11 02:07:44 n0 kernel: {XID}\n", "kernel"),
        ("kmsg", f"6,3973,227996636,-;{XID}\n", "kernel"),
        (
            "events.txt",
            "2026-01-22T04:30:09Z   Warning   Evicted   pod/w-1   The node was low on resource\n",
            "events",
        ),
        ("pod.txt", "Name:             w-3\nNode:             n0\nContainers:\n", "scheduler"),
        ("fm.log", "[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received a message\n", "service"),
        (
            "agent.log",
            "I0606 05:45:01.300000 14 torch/distributed/launcher/api.py:188]   min_nodes : 4\n",
            "agent",
        ),
        ("train.log", "[rank0]: step 3\n[rank1]: step 3\n", "merged"),
        ("rank-1.log", "step 3\n", "rank"),
    ],
)
def test_kind_of_a_log_is_told_from_its_lines(name: str, text: str, kind: str) -> None:
    (file,) = read_files({name: text}).logs.files

    assert file.kind == kind


def test_kernel_lines_are_of_a_host_and_of_no_rank() -> None:
    table = read_files({"n0/rank-0.log": "step\n", "n0/dmesg.txt": f"[12.500000] {XID}\n"})

    (event,) = table.logs.events
    assert (event.signature, event.rank, event.node) == ("xid.79", UNKNOWN_RANK, "n0")
    assert event.time is not None
    assert event.time.clock != "n0"


def test_boot_time_in_a_kernel_log_places_its_lines() -> None:
    text = (
        "[    1.500000] rtc_cmos 00:00: setting system clock to 2026-04-02T05:44:10 UTC (17751)\n"
        f"[   61.500000] {XID}\n"
    )
    (event,) = read_files({"n0/dmesg.txt": text}).logs.events

    assert event.time is not None
    assert (event.time.clock, event.time.ns // 10**9) == ("n0", 1775108710)


def test_attempts_are_counted() -> None:
    text = (
        f"[rank3]: {ECC}\n"
        "I0823 07:16:30.300000 4000 torch/distributed/elastic/agent/server/api.py:960] [default] "
        "Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        f"[rank3]: {ECC}\n"
    )
    table = read_job(train=text)

    assert [event.attempt for event in table.logs.events if event.signature == "cuda.ecc"] == [0, 1]
    assert table.logs.attempts == 2


def test_lines_that_are_alike_are_counted() -> None:
    lines = "".join(f"[rank{rank}]: {ECC}\n" for rank in (0, 1, 0, 0))

    events = read_job(train=lines).logs.events

    assert [(event.rank, event.row, event.count) for event in events] == [(0, 1, 3), (1, 2, 1)]


def test_lines_of_one_signature_are_bounded() -> None:
    lines = "".join(f"NVRM: Xid (PCI:0000:9b:00): 79, pid={number}\n" for number in range(1000))

    events = read_job(dmesg=lines).logs.events

    assert len(events) == MAX_TEXTS
    assert sum(event.count for event in events) == 1000


def test_time_is_that_of_the_record_a_traceback_belongs_to() -> None:
    text = (
        "2025-06-16 16:16:16,470 ERROR train: step failed\nTraceback (most recent call last):\n"
        '  File "a.py", line 3, in f\nValueError: x\n'
    )
    (item,) = read_files({"rank_1.log": text}).exceptions

    assert item.time is not None
    assert item.time.ns == 1750090576_470_000_000


def test_faulthandler_in_a_merged_log_is_of_the_only_rank_that_crashed() -> None:
    text = """\
Fatal Python error: Segmentation fault

Thread 0x00007f0000aaa700 (most recent call first):
  File "/usr/lib/threading.py", line 3 in wait
Current thread 0x00007f0000aaa740 (most recent call first):
  File "/app/rope.py", line 34 in forward

Extension modules: numpy (total: 1)
Root Cause (first observed failure):
  rank      : 2 (local_rank: 2)
  exitcode  : -11 (pid: 8803) (SIGSEGV)
"""
    (fatal,) = read_job(train=text).fatals

    assert (fatal.rank, fatal.reason, fatal.row, fatal.last_row) == (2, "Segmentation fault", 1, 6)
    assert fatal.threads[0].frames[0].file == "/app/rope.py"
    assert fatal.threads[0].is_main


def test_unknown_errors_are_folded_by_their_form() -> None:
    text = "".join(
        f"[rank{rank}]: 2026-03-04 10:00:0{rank} ERROR loader: shard '/data/{rank}.tar' failed to "
        f"open after {rank} tries\n"
        for rank in range(4)
    )
    (cluster,) = read_job(train=text + "done, 0 errors\nERROR: 0 failures\n").logs.clusters

    assert (cluster.count, cluster.ranks) == (4, frozenset(range(4)))
    assert cluster.template == "ERROR loader: shard <*> failed to open after <*> tries"
    assert cluster.sample.startswith("ERROR loader: shard '/data/0.tar'")


@pytest.mark.parametrize(
    "line",
    [
        "validation: mean absolute error 0.0213, 0 failed samples",
        "s3: read of shard failed with code 503, attempt 1 of 5, will retry",
        "NCCL_ASYNC_ERROR_HANDLING is deprecated",
        "mean squared error: 0.03",
        "errors: none",
    ],
)
def test_healthy_lines_with_loud_words_are_no_errors(line: str) -> None:
    table = read_job(train=f"{line}\n" * 3)

    assert table.logs.clusters == ()
    assert table.logs.events == ()


def test_long_lines_zeros_and_noise_are_read() -> None:
    data = (
        b"\0" * 70_000
        + b"x" * 10_000_000
        + b"\n"
        + bytes(range(256)) * 50
        + b"\r\n[rank2]: "
        + ECC.encode()
        + b"\r\n caf\xe9\n"
    )
    (event,) = [
        event
        for event in read_files({"a.log": data}, 1 << 16).logs.events
        if event.signature == "cuda.ecc"
    ]

    assert event.rank == 2
    assert event.row == data[: data.index(b"[rank2]")].count(b"\n") + 1


def test_paths_tell_hosts_that_lines_know() -> None:
    texts = {
        "logs/alpha/rank_0.log": f"step\n{ECC}\n",
        "kern.log": "May 11 02:07:44 alpha kernel: up\n",
        "exp1/rank_1.log": ECC,
    }
    files: dict[str, LogFile] = {file.artifact: file for file in read_files(texts).logs.files}

    assert files["logs/alpha/rank_0.log"].node == "alpha"
    # Any folder can have a number.
    assert files["exp1/rank_1.log"].node == ""


def test_rotated_names_keep_their_rank() -> None:
    assert read_log_name("rank_3.log.2.gz").rank == 3
    assert read_log_name("rank_3.log.2.gz").rotation == 2


@pytest.mark.parametrize("name", ["", ".log", ".log.1.gz", "a/.gz", "/"])
def test_names_that_are_nearly_nothing_tell_nothing(name: str) -> None:
    assert read_log_name(name).rank is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                ECC,
                XID,
                comm(3).strip(),
                "step 3 loss 2.0",
                "ERROR it broke",
                "[default1]:[rank5]: step",
                "3: text",
                "n0: text",
                "RANK=3 WORLD_SIZE=8",
                "restart_count=2",
            ]
        ),
        max_size=20,
    ),
    st.integers(1, 300),
)
def test_files_are_the_same_however_they_are_cut(lines: list[str], block: int) -> None:
    data = "\n".join(lines).encode()

    whole, cut = read_log(data, load_tables()), read_log(data, load_tables(), block)

    assert [(e.signature, e.row, e.count) for e in whole.events] == [
        (e.signature, e.row, e.count) for e in cut.events
    ]
    assert whole.rows == cut.rows
