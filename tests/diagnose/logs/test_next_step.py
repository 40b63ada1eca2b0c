"""Where logs do not decide, the report begins with the one command that would."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Verdict

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=188, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
JOINED = "n{0}:41{0}:9 [0] NCCL INFO ncclCommInitRank comm 0x5e{0} rank {0} nranks 3 cudaDev 0 nvmlDev 0 busId 1000 commId 0x8ab1 - Init COMPLETE"  # noqa: E501
GLOO = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"  # noqa: E501
ENDED = "E1120 09:00:12.340000 4401 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0 (pid: 5121) of binary: python"  # noqa: E501


def test_silent_rank_of_a_job_that_hangs_is_looked_at(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *map(JOINED.format, range(3)), *map(WAIT.format, (0, 1))))

    assert finding.code == "C211"
    assert finding.remedies[0].startswith("py-spy dump --pid 412   # of rank 2 on n2:")


def test_logs_of_silent_ranks_are_asked_for_where_the_job_has_ended(tmp_path: Path) -> None:
    lines = [*map(JOINED.format, range(3)), *map(WAIT.format, (0, 1)), ENDED]

    finding = first_of(say(tmp_path, *lines))

    assert finding.remedies[0].startswith("whystuck logs LOG...   # with the log of rank 2 on n2")


def test_nccl_is_asked_where_all_that_is_known_waits(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *map(WAIT.format, (0, 1))))

    assert finding.remedies[0].startswith("ncclras -v")


def test_gloo_is_made_to_tell_more_in_the_next_run(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, GLOO))

    assert finding.remedies[0].startswith("export TORCH_DISTRIBUTED_DEBUG=DETAIL")


def test_same_advice_is_given_once(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *map(WAIT.format, (0, 1)), ENDED))

    assert len(finding.remedies) == len(set(finding.remedies))


KILLED = "E1120 09:00:12.340000 4401 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 5122) of binary: python"  # noqa: E501
CODE = """\
  time      : 2025-01-20_03:11:46
  host      : n2
  rank      : 5 (local_rank: 5)
  exitcode  : 1 (pid: 614)
  error_file: <N/A>
"""


def next_of(folder: Path, *lines: str) -> str:
    return say(folder, *lines).logs.next_command


def test_output_of_a_rank_that_ended_without_a_word_is_asked_for(tmp_path: Path) -> None:
    told = next_of(tmp_path, "Root Cause (first observed failure):", CODE)

    assert told.startswith("whystuck logs LOG...   # with the log of rank 5 (process 614) on n2")


def test_kernel_is_asked_who_killed_a_container(tmp_path: Path) -> None:
    told = next_of(tmp_path, "web-b-1 exited with code 137", "web-a-1 exited with code 1")

    assert told.startswith("dmesg -T | grep -i 'killed process'   # on web-b-1")


def test_description_of_a_pod_that_was_killed_is_asked_for(tmp_path: Path) -> None:
    told = next_of(tmp_path, "bert-worker-1 exited with code 137")

    assert told.startswith("kubectl describe pod bert-worker-1 ")


def test_stacks_that_are_missing_beside_others_are_asked_for(tmp_path: Path) -> None:
    stack = 'Process 71: python t.py\nThread 71 (idle): "MainThread"\n    f (t.py:3)\n'
    told = next_of(tmp_path, "rank 0 of 2", "rank 0:", stack, "[rank1]: step 3 loss 0.1")

    assert told.startswith("py-spy dump --pid PID   # of rank 1")


def test_nothing_more_is_asked_for_where_the_cause_is_known(tmp_path: Path) -> None:
    assert not next_of(tmp_path, "[rank0]: ValueError: no", KILLED)


HUNG = "[rank5]:[E1013 05:06:07.888000000 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."  # noqa: E501


def test_native_stacks_are_asked_for_where_a_watchdog_hangs(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, HUNG))

    assert finding.code == "C211"
    assert finding.remedies[0].startswith("gdb -p PID -batch -ex 'thread apply all bt'   # of rank")


@pytest.mark.parametrize(
    "told",
    [
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5",
        "unhandled cuda error, NCCL version 2.18.6",
        "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.26.2",
    ],
)
def test_failure_of_nccl_in_a_process_is_no_lost_peer(tmp_path: Path, told: str) -> None:
    report = say(tmp_path, f"RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, {told}")

    assert (report.verdict, list(report.findings)) == (Verdict.INCONCLUSIVE, [])
    assert report.logs is not None
    assert report.logs.next_command.startswith("export NCCL_DEBUG=INFO")


def test_remote_error_of_nccl_is_still_a_lost_peer(tmp_path: Path) -> None:
    text = "remote process exited or there was a network error, NCCL version 2.18.6"

    finding = first_of(say(tmp_path, f"RuntimeError: NCCL error in: ../x.cpp:1275, {text}"))

    assert finding.code == "C209"


ECHOES = (
    "[rank{0}]: RuntimeError: ACL stream synchronize failed, error code:{1}",
    "[rank{0}]: EZ9999: Inner Error!",
    "[rank{0}]: EZ9999: [PID: 55{0}] 2026-02-02-02:02:02.002.002 Inner error is reported as above.",
)


def test_waits_for_an_npu_that_fail_blame_nobody(tmp_path: Path) -> None:
    lines = [line.format(rank, 507048) for rank in (2, 3) for line in ECHOES]

    report = say(tmp_path, *lines)

    assert (report.verdict, list(report.findings)) == (Verdict.INCONCLUSIVE, [])
    assert report.logs is not None
    assert report.logs.next_command.startswith("grep -rn ERROR ~/ascend/log   # of ranks 2-3")


def test_exception_in_a_core_of_an_npu_is_of_its_rank(tmp_path: Path) -> None:
    lines = [line.format(2, 507015) for line in ECHOES]

    finding = first_of(say(tmp_path, *lines, "[rank0]: step 3 loss 1.2"))

    assert (finding.code, finding.culprits.ranks) == ("C212", [2])
