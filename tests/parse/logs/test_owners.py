"""Whose a line is when it does not say so, and whether its rank went on after it."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_files, read_job

from whystuck.evidence.logs.lines import UNKNOWN_RANK

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
TRACE = (
    f'Traceback (most recent call last):\n  File "/app/train.py", line 9, in main\n    f()\n{ECC}\n'
)
FAILED = """\
E0101 10:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)
============================================================
/app/train.py FAILED
------------------------------------------------------------
Failures:
{others}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : n0
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 4103)
  error_file: <N/A>
============================================================
"""
ALONE = FAILED.format(others="  <NO_OTHER_FAILURES>")
NOT_ALONE = FAILED.format(
    others="[1]:\n  time      : 2026-01-01_10:00:00\n  host      : n0\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 4101)\n  error_file: <N/A>"
)


def _elastic(*folders: str) -> list[int]:
    events = read_files({f"{folder}/stderr.log": ECC for folder in folders}).logs.events
    return [event.rank for event in events]


def test_folders_of_one_launcher_tell_ranks() -> None:
    assert _elastic("run_x/attempt_0/0", "run_x/attempt_0/5") == [0, 5]


def test_folders_of_two_launchers_tell_local_ranks_only() -> None:
    assert _elastic("run_x/attempt_0/0", "run_y/attempt_0/0") == [UNKNOWN_RANK] * 2


@pytest.mark.parametrize(("said", "rank"), [("[rank1]: x\n", 1), ("[rank9]: x\n", UNKNOWN_RANK)])
def test_folders_are_believed_where_lines_do_not_object(said: str, rank: int) -> None:
    name = "run_x/attempt_0/1"
    texts = {f"{name}/stdout.log": said, f"{name}/stderr.log": ECC}
    (event,) = read_files(texts).logs.events

    assert event.rank == rank


def test_folders_of_a_part_of_the_job_tell_local_ranks_only() -> None:
    line = "n0:100:9 [0] NCCL INFO comm 0x5 rank 9 nranks 16 cudaDev 1 busId 9b000 - Init\n"
    texts = {"run_x/attempt_0/1/stderr.log": ECC, "other.log": line}
    events = read_files(texts).logs.events

    assert [event.rank for event in events] == [UNKNOWN_RANK]


def test_traceback_that_nobody_signed_is_of_the_only_rank_that_failed() -> None:
    table = read_job(train=f"step 1\n{TRACE}{ALONE}")

    assert [item.rank for item in table.exceptions] == [3]
    assert [event.rank for event in table.logs.events if event.code == "C208"] == [3]


@pytest.mark.parametrize("text", [f"{TRACE}{NOT_ALONE}", f"{TRACE}{TRACE}{ALONE}", TRACE])
def test_traceback_that_may_be_of_several_ranks_is_of_none(text: str) -> None:
    assert {item.rank for item in read_job(train=text).exceptions} == {UNKNOWN_RANK}


@pytest.mark.parametrize(
    ("name", "later", "is_past"),
    [
        ("train", "2026-01-01 10:30:00 INFO step 500 loss 2.0\n", True),
        # What waited in a buffer comes late, and is older.
        ("train", "2026-01-01 09:59:59 INFO step 2 loss 2.0\n" * 50, False),
        # Others may make one more step.
        ("train", "2026-01-01 10:00:09 INFO step 2 loss 2.0\n", False),
        ("train", f"2026-01-01 10:30:00 INFO step 500 loss 2.0\n{ALONE}", False),
        ("rank_0", "2026-01-01 10:00:09 INFO step 2 loss 2.0\n", True),
        ("rank_0", "step 2 loss 2.0\n" * 30, True),
        ("rank_0", "step 2 loss 2.0\n" * 3, False),
        ("rank_0", "", False),
    ],
)
def test_line_is_past_when_its_rank_trained_on(name: str, later: str, is_past: bool) -> None:
    stamp = "2026-01-01 10:00:00 " if later[:2] == "20" else ""
    table = read_files({f"{name}.log": f"{stamp}WARNING skipped: {ECC}\n{later}"})

    assert [event.is_past for event in table.logs.events if event.code == "C208"] == [is_past]
