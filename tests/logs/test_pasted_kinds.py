"""Kinds of lines in pasted texts: as tools print them, cut or mixed, and what only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Verdict

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=188, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
WAITS = [WAIT.format(rank) for rank in (1, 2, 3)]
STATUS = (
    "[rank{0}]:[E1112 08:40:10.3 ProcessGroupNCCL.cpp:2168] [PG ID {1} PG GUID {1} Rank {0}]  "
    "failure detected by watchdog at work sequence id: 188 PG status: last enqueued work: {2}, "
    "last completed work: 187"
)

# ---------------------------------------------------------------------------------- MPI_Abort

OPEN_MPI_5 = """\
MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD
  Proc: [[40221,1],5]
  Errorcode: 1"""
OPEN_MPI_4 = """\
MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD
with errorcode 1."""
MPICH = "application called MPI_Abort(MPI_COMM_WORLD, 7) - process 5"
INTEL = "Abort(7) on node 5 (rank 5 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 5"  # noqa: E501


@pytest.mark.parametrize("text", [OPEN_MPI_5, OPEN_MPI_4, MPICH, INTEL])
@pytest.mark.parametrize("prefix", ["", "head: ", "head-1: ", "2026-03-04T10:12:32.5Z stderr F "])
def test_rank_that_called_abort_is_named(tmp_path: Path, text: str, prefix: str) -> None:
    lines = [prefix + line for line in text.splitlines()]

    finding = first_of(say(tmp_path, f"{prefix}loading", *lines, f"{prefix}bye"))

    assert (finding.code, finding.culprits.ranks) == ("C204", [5])


@pytest.mark.parametrize(
    "text",
    [
        "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.",
        "MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0",
        "raise RuntimeError('application called MPI_Abort(sub, 1) - process 2')",
    ],
)
def test_abort_of_nobody_or_of_a_member_names_no_rank(tmp_path: Path, text: str) -> None:
    report = say(tmp_path, "loading", text)

    assert not [rank for one in report.findings for rank in one.culprits.ranks]


def test_exception_goes_before_the_abort_that_follows_it(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, "[1,2]<stderr>:ValueError: no", OPEN_MPI_5))

    assert finding.culprits.ranks == [2]


# ------------------------------------------------------------------------------ who is at work

BAR = "Map (num_proc=16):  41%|####1     | 41/100 [29:50<04:27, 48.1 examples/s]"


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (["[rank0]: tokenizing the train split", BAR], "H117"),
        (["[rank0]: tokenized 41000/90000 documents"], "H117"),
        (["[rank0]: writing consolidated state dict to /mnt"], "H118"),
        (["[rank0]: shard 4/24 written, 41.6 MB/s"], "H118"),
    ],
)
def test_rank_that_works_while_others_wait_is_named(
    tmp_path: Path, work: list[str], code: str
) -> None:
    report = say(tmp_path, *work, *WAITS)

    assert (report.findings[0].code, report.findings[0].culprits.ranks) == (code, [0])
    assert report.verdict is Verdict.WAITING


@pytest.mark.parametrize(
    "work",
    [
        ["[rank0]: tokenized 90000/90000 documents"],
        ["[rank0]: shard 24/24 written, 41.6 MB/s"],
        ["[rank0]: writing consolidated state dict to /mnt", "[rank0]: wrote checkpoint"],
        ["[rank0]: tokenizing the train split"],
        ["[rank0]: packing is off"],
    ],
)
def test_work_that_is_over_or_not_seen_to_move_explains_nothing(
    tmp_path: Path, work: list[str]
) -> None:
    assert first_of(say(tmp_path, *work, *WAITS)).code == "C211"


def test_bar_is_nobodys_where_two_ranks_do_such_work(tmp_path: Path) -> None:
    begun = [f"[rank{rank}]: tokenizing the train split" for rank in (0, 4)]

    assert not say(tmp_path, *begun, BAR, *WAITS).findings[0].culprits.ranks


def test_wait_at_the_store_beside_a_download_is_no_failed_rendezvous(tmp_path: Path) -> None:
    bar = "[rank0]: Downloading shards:  43%|####3     | 13/30 [27:10<36:01, 127.1s/it]"
    key = "[rank1]: torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /0//cpu/0"

    assert say(tmp_path, bar, key).findings[0].code == "H117"


# --------------------------------------------------------------------------- storage, by kernels

SILENT = "May 14 03:30:11 n44 kernel: nfs: server fs01 not responding, still trying"
HUNG = "May 14 03:32:40 n44 kernel: INFO: task {0}:51877 blocked for more than 120 seconds."
OLD_HUNG = "[ 4410.221] INFO: task python3:51877 blocked for more than 122 seconds."
ANSWERS = "May 14 03:30:19 n44 kernel: nfs: server fs01 OK"
LATER = [line.replace("E1112 08:40", "E514 03:40") for line in WAITS]


@pytest.mark.parametrize("lines", [[SILENT], [SILENT, HUNG.format("python3")], [SILENT, OLD_HUNG]])
def test_file_server_that_does_not_answer_explains_waits(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(say(tmp_path, *lines, *LATER))

    assert (finding.code, finding.culprits.ranks) == ("H116", [])
    assert finding.culprits.nodes == ["n44"]


@pytest.mark.parametrize(
    "lines",
    [
        [SILENT, ANSWERS],
        [HUNG.format("kworker/3:1")],
        [SILENT.replace("May", "Jan")],
        ["INFO storage: nfs server fs01 is responding"],
    ],
)
def test_server_that_answered_or_is_of_another_time_explains_nothing(
    tmp_path: Path, lines: list[str]
) -> None:
    assert first_of(say(tmp_path, *lines, *LATER)).code == "C211"


# ---------------------------------------------------------------------- what did not end anything


@pytest.mark.parametrize(
    "text",
    [
        "retrying read of shard 118 (attempt 1/5): Connection reset by peer",
        "Connection reset by peer; will retry in 5 s",
        "attempt 2 of 3: Broken pipe in store",
    ],
)
def test_what_is_tried_again_has_ended_nothing(tmp_path: Path, text: str) -> None:
    assert not say(tmp_path, "[rank0]: step 1 loss 2.0", f"[rank3]: {text}").findings


def test_last_try_has(tmp_path: Path) -> None:
    line = "[rank3]: attempt 5/5: recvValue failed on SocketImpl(fd=4): Connection reset by peer"

    assert first_of(say(tmp_path, "[rank0]: step 1 loss 2.0", line)).code == "C209"


OOM = "[3]<stderr>:WARNING: CUDA out of memory. Tried to allocate 1.20 GiB. -- batch halved"


def test_memory_that_ran_out_and_was_got_over_is_no_cause(tmp_path: Path) -> None:
    on = "[3]<stdout>:step 41 loss 0.88"

    assert first_of(say(tmp_path, OOM, on, "[1]<stderr>:ValueError: no")).culprits.ranks == [1]


def test_memory_that_ran_out_at_the_end_is(tmp_path: Path) -> None:
    before = "[3]<stdout>:step 41 loss 0.88"
    finding = first_of(say(tmp_path, before, OOM, "[1]<stdout>:step 41 loss 0.88"))

    assert (finding.code, finding.culprits.ranks) == ("C206", [3])


# -------------------------------------------------------------------------- launchers' own ends

ENDED = """\
Failures:
[1]:
  time      : 2025-01-20_03:11:{0}
  host      : n2
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 611)
Root Cause (first observed failure):
[0]:
  time      : 2025-01-20_03:11:46
  host      : n2
  rank      : 5 (local_rank: 5)
  exitcode  : 1 (pid: 614)
"""


def test_sigterm_after_another_rank_failed_is_the_launchers(tmp_path: Path) -> None:
    assert not say(tmp_path, ENDED.format(47)).findings


def test_sigterm_before_any_rank_failed_is_from_outside(tmp_path: Path) -> None:
    assert first_of(say(tmp_path, ENDED.format(40))).culprits.ranks == [2]


def test_pod_that_a_description_tells_of_is_named(tmp_path: Path) -> None:
    text = "Name:             bert-worker-3\n    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"  # noqa: E501

    finding = first_of(say(tmp_path, "$ kubectl describe pod bert-worker-3", text))
    assert finding.culprits.nodes == ["bert-worker-3"]


# --------------------------------------------------------------------- all that is told of waits


@pytest.mark.parametrize(
    ("group", "enqueued", "code"), [(0, 203, "H122"), (1, 203, "C211"), (0, 188, "C211")]
)
def test_all_ranks_that_went_on_to_issue_ops_are_not_missing(
    tmp_path: Path, group: int, enqueued: int, code: str
) -> None:
    told = [
        line
        for rank in range(4)
        for line in (WAIT.format(rank), STATUS.format(rank, group, enqueued))
    ]

    finding = first_of(say(tmp_path, *told))
    assert (finding.code, finding.culprits.ranks) == (code, [])
