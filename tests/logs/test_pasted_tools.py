"""What other tools print of ranks and hosts, and what looks much like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HCCL = (
    "[rank{0}]: EI0002: [PID: 51{0}] 2026-01-22-04:11:09.101.220 Communication_Error_Timeout: {1}"
)
OLD = (
    "The wait execution of the Notify register times out. Reason: The Notify register has not "
    "received the Notify record from remote rank{0}. base information: [streamID:[14]]"
)
NEW = (
    "An timeout occurs when the Notify register waits for execution. Waiting peer rank: {0}; task "
    "information: streamID 14"
)


@pytest.mark.parametrize("text", [OLD.format(" [3]"), OLD.format(": [3]"), NEW.format(3)])
def test_rank_that_all_others_wait_for_on_npus_is_named(tmp_path: Path, text: str) -> None:
    finding = first_of(say(tmp_path, *(HCCL.format(rank, text) for rank in range(3))))

    assert (finding.code, finding.culprits.ranks) == ("H101", [3])


def test_rank_that_waits_for_its_neighbour_on_npus_is_not_named(tmp_path: Path) -> None:
    texts = [HCCL.format(rank, NEW.format((rank + 1) % 4)) for rank in range(4)]

    finding = first_of(say(tmp_path, *texts))

    assert (finding.code, finding.culprits.ranks) == ("C211", [])


KVS = "2026:05:04-10:14:11:(880112) |CCL_{0}| internal_kvs.cpp:532 kvs_init: connection time {1}"
ATL = "[rank{0}]: RuntimeError: oneCCL: atl_ofi_comm.cpp:274 init_transport: EXCEPTION: no ATL"


OLD_KVS = KVS.replace("connection time {1}", "connection error: {1}")
FAILED_KVS = [
    KVS.format("ERROR", "(120) >= limit (120)"),
    OLD_KVS.format("ERROR", "timeout limit (121 > 120)"),
    f"[1] {OLD_KVS.format('ERROR', 'timeout limit (31 > 30), ip: 10.8.0.3')}",
]


@pytest.mark.parametrize("line", FAILED_KVS)
def test_store_of_oneccl_that_was_not_reached_is_a_failed_rendezvous(
    tmp_path: Path, line: str
) -> None:
    lines = [line, *map(ATL.format, (4, 5))]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H121", [])


@pytest.mark.parametrize(
    "line", [KVS.format("INFO", "(3)"), OLD_KVS.format("WARN", "retry 1 of 3")]
)
def test_store_of_oneccl_that_was_reached_is_none(tmp_path: Path, line: str) -> None:
    finding = first_of(say(tmp_path, line, *map(ATL.format, (4, 5))))

    assert (finding.code, finding.culprits.ranks) == ("C209", [])


FAULT = "ERROR 11-02 10:22:10 [worker.py:527] RuntimeError: CUDA error: an illegal memory access was encountered"  # noqa: E501


@pytest.mark.parametrize(
    ("writer", "ranks"),
    [
        ("VllmWorker TP2 pid=4411", [2]),
        ("Worker_TP2 pid=4411", [2]),
        ("VllmWorker rank=2 pid=4411", [2]),
        # Where engines split more than that, its number is not that of a rank.
        ("Worker DP1 TP2 pid=4411", []),
        ("Worker PP1 TP2 pid=4411", []),
        ("EngineCore pid=4411", []),
    ],
)
def test_worker_of_vllm_is_named(tmp_path: Path, writer: str, ranks: list[int]) -> None:
    finding = first_of(say(tmp_path, "INFO engine is up", f"({writer}) {FAULT}"))

    assert (finding.code, finding.culprits.ranks) == ("C212", ranks)


WRAPPED = (
    "[rank0]: RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running "
    "collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[64]). "
    "Error: "
)
BARRIER = "[rank0]: {0}Rank 2 failed to pass monitoredBarrier in 1800000 ms"
BEHIND = "[rank0]:  Original exception: "


@pytest.mark.parametrize("before", ["", "[Rank 0]: ", "[ProcessGroupGloo.cpp:2896] "])
def test_barrier_of_the_wrapper_names_who_did_not_come(tmp_path: Path, before: str) -> None:
    report = say(tmp_path, WRAPPED, BARRIER.format(before), BEHIND)

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("H101", [2])]


def test_barrier_of_the_wrapper_that_is_cut_blames_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, WRAPPED)

    assert all(not one.culprits.ranks for one in report.findings)


FLOOR = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."


@pytest.mark.parametrize(
    "lines",
    [
        [f"Exception: {FLOOR}"],
        [
            "Traceback (most recent call last):",
            '  File "/v/site-packages/deepspeed/fp16/loss_scaler.py", line 175, in update',
            f"Exception: {FLOOR}",
        ],
    ],
)
def test_scale_that_cannot_be_lowered_is_told_once(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("V503", [])]


def test_scale_that_is_lowered_is_the_search_for_it(tmp_path: Path) -> None:
    line = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2"

    assert say(tmp_path, line, line).findings == []


SILENT = "[Thu Mar 12 03:10:11 2026] nfs: server 10.3.0.9 not responding, still trying"
ANSWERS = "[Thu Mar 12 03:13:11 2026] nfs: server 10.3.0.9 OK"
HUNG = "[Thu Mar 12 03:12:20 2026] INFO: task {0}:55120 blocked for more than 120 seconds."


def test_kernel_log_alone_tells_of_a_silent_file_server(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, SILENT, HUNG.format("python3"), name="dmesg.txt"))

    assert (finding.code, finding.confidence) == ("H116", "possible")


@pytest.mark.parametrize(
    "lines",
    [
        [SILENT],
        [SILENT, HUNG.format("kworker/3")],
        [SILENT, HUNG.format("python3"), ANSWERS],
    ],
    ids=["nobody hangs", "no rank hangs", "it answers again"],
)
def test_file_server_that_nobody_needs_or_that_answers_is_no_cause(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines, name="dmesg.txt")

    assert all(one.code != "H116" for one in report.findings)
