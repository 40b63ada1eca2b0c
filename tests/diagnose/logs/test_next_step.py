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
