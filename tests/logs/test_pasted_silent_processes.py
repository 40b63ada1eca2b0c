"""A process that gives NCCL RAS no answer, and what its host shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

HEAD = """\
NCCL version 2.27.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  INCOMPLETE

Errors
======
"""
SILENT = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process {0} on node 10.4.0.2 managing GPU 1
"""
COMM = """\
#{0} (5d1c07aa19be4502) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5
"""
PS = "$ ssh {0} ps -o pid,stat,wchan:20,etime,cmd -p {1}"
LOOKS = {
    "heads": "    PID STAT WCHAN                    ELAPSED CMD",
    "user": "USER         PID STAT WCHAN                    ELAPSED CMD",
}
ROW = "  {0} {1:4} {2:20} 1-03:12:55 python -u train.py --cfg a.yaml"
TALK = {
    "cut": [],
    "whole": HEAD.splitlines(),
    "said": ["I asked NCCL what it is waiting for, and this is what I got:", ""],
}


def tell(
    folder: Path,
    *,
    head: str = "cut",
    comm: str = "0-0",
    state: str = "Tl",
    host: str = "10.4.0.2",
    told: int = 61207,
    shown: int = 61207,
) -> tuple[str, list[int], set[int]]:
    """Diagnose an answer of RAS and a list of processes; return the first code and who is named."""
    wait = "do_signal_stop" if state[0] == "T" else "futex_do_wait"
    look = [PS.format(host, shown), LOOKS["heads"], ROW.format(shown, state, wait)]
    answer = [*SILENT.format(told).splitlines(), "", *COMM.format(comm).splitlines()]
    report = say(folder, *TALK[head], *answer, "", *look)
    named = {rank for one in report.findings if one.code == "H113" for rank in one.culprits.ranks}
    found = first_of(report)
    return found.code, found.culprits.ranks, named


@pytest.mark.parametrize("head", TALK)
@pytest.mark.parametrize("state", ["Tl", "T", "tl", "Tsl+"])
def test_process_without_an_answer_that_is_stopped_is_the_missing_rank(
    tmp_path: Path, head: str, state: str
) -> None:
    assert tell(tmp_path, head=head, state=state)[:2] == ("H113", [5])


@pytest.mark.parametrize("state", ["Sl", "Rl"])
def test_process_without_an_answer_that_runs_is_not_stopped(tmp_path: Path, state: str) -> None:
    assert tell(tmp_path, state=state)[0] == "H101"


def test_process_of_another_host_is_another_one(tmp_path: Path) -> None:
    assert tell(tmp_path, host="10.4.0.7")[2] == set()


def test_another_process_of_that_host_is_no_rank_that_is_known(tmp_path: Path) -> None:
    assert tell(tmp_path, shown=61999)[2] == set()


def test_member_of_a_smaller_group_is_no_rank_of_the_job(tmp_path: Path) -> None:
    assert tell(tmp_path, comm="3-1")[2] == set()


def test_several_processes_without_an_answer_are_told_apart_by_nobody(tmp_path: Path) -> None:
    answer = [
        "INCOMPLETE",
        "  Missing communicator data from 2 job processes",
        "  Process 61207 on node 10.4.0.2 managing GPU 1",
        "  Process 61208 on node 10.4.0.2 managing GPU 2",
        "",
        "#0-0 (5d1c07aa19be4502) INCOMPLETE",
        "  Missing communicator data from 2 ranks",
        "  The missing ranks: 5, 6",
    ]
    look = [PS.format("10.4.0.2", 61207), LOOKS["heads"], ROW.format(61207, "Tl", "do_signal_stop")]
    report = say(tmp_path, *answer, "", *look)
    stopped = [one for one in report.findings if one.code == "H113"]

    assert all(not one.culprits.ranks for one in stopped)
    assert blamed_of(report)[0] <= {5, 6}


def test_words_about_missing_data_are_no_answer(tmp_path: Path) -> None:
    lines = [
        "  Missing communicator data from the log, see below",
        "INFO Missing communicator data from 1 job process in the docs of RAS",
        "[rank0] step 4 loss 2.1",
    ]

    assert not say(tmp_path, *lines).findings
