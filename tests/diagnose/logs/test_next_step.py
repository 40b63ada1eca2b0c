"""Where logs do not decide, the report begins with the one command that would."""

from __future__ import annotations

from pathlib import Path

from tests.logs.test_told import first_of, say

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
