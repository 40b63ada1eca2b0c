"""Who is who in a paste: a process, a pod or a host of one part is a rank of another part."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=18442, OpType=ALLREDUCE, NumelIn=4096, "
    "NumelOut=4096, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
WAITS = [WAIT.format(rank) for rank in (1, 2, 3)]
STACK = """
Process 4711: /opt/venv/bin/python -u train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    acquire (filelock/_api.py:337)
    read_table (train.py:61)
    step (train.py:110)
    main (train.py:300)
    <module> (train.py:340)
""".splitlines()
RAS = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         {3}         1         {0}         {0}         {1}   RUNNING  MISMATCH

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  {2} ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 4711 on node 10.0.0.3
"""
ENVIRON = "$ tr '\\0' '\\n' < /proc/4711/environ | grep RANK"
NCCL = (
    "n1:4711:5100 [1] NCCL INFO ncclCommInitRank comm 0x55 rank 5 nranks 8 cudaDev 1 nvmlDev 1 "
    "busId c1000 commId 0x1 - Init COMPLETE"
)
PS = "   4711 ?  Sl  41:02 python -u train.py {0} PATH=/usr/bin"
COMPILES = (
    "[rank5]:V0612 03:20:11.120000 4711 site-packages/torch/_dynamo/guards.py:3006] [3/5] new guard"
)


def blamed(folder: Path, *lines: str) -> set[int]:
    return {rank for one in say(folder, *lines).findings for rank in one.culprits.ranks}


@pytest.mark.parametrize(
    "told",
    [
        ["rank 5 is pid 4711"],
        ["pid 4711 (rank 5) does not move"],
        [COMPILES],
        ["(RayTrainWorker pid=4711, ip=10.0.3.4) [rank 5] step 810 loss 1.5"],
        ["$ py-spy dump -p 4711 | head -14        # rank 5, 03:28"],
        ["root@n1:~# py-spy dump --pid=4711 --nonblocking  # this one is rank 5"],
        [ENVIRON, "RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=8"],
        [ENVIRON, "LOCAL_RANK=1", "GROUP_RANK=0", "RANK=5"],
        ["$ cat /proc/4711/environ | tr '\\0' '\\n' | egrep '^(RANK|WORLD)'", "RANK=5"],
        [PS.format("HOME=/root RANK=5 LOCAL_RANK=1")],
        [RAS.format(8, 8, 7, 1)],
        [NCCL],
    ],
    ids=range(12),
)
def test_process_is_led_to_its_rank(tmp_path: Path, told: list[str]) -> None:
    # Whatever stands between, and in whichever order the parts are pasted
    assert blamed(tmp_path, *told, "", *STACK, *WAITS) == {5}
    assert blamed(tmp_path, *WAITS, *STACK, "", *told) == {5}


@pytest.mark.parametrize(
    "head",
    [
        "rank 5 looks like this:",
        "and this is where rank 5 sits:",
        "stack of rank 5 (the others are all in all_reduce):",
        "Rank 5 main thread, three times the same:",
        "## rank5, taken at 08:35:",
    ],
)
def test_sentence_above_a_stack_tells_whose_it_is(tmp_path: Path, head: str) -> None:
    assert blamed(tmp_path, *WAITS, "", head, "", *STACK) == {5}


@pytest.mark.parametrize(
    "told",
    [
        ["rank 5 is pid 4711", "rank 6 is pid 4711"],
        [COMPILES, COMPILES.replace("rank5", "rank6")],
        [COMPILES, "$ py-spy dump -p 4711    # rank 6"],
        ["(W pid=4711, ip=10.0.3.4) [rank 5] step 8", "(W pid=4711, ip=10.0.3.5) [rank 6] step 8"],
        ["Nov 12 08:00:01 n1 torchrun[4711]: [rank5]: step 810 loss 1.5"],
        [ENVIRON, "LOCAL_RANK=5", "GROUP_RANK=0"],
        [ENVIRON, *["..."] * 20, "RANK=5", *["..."] * 20],
        [PS.format("LOCAL_RANK=5 GROUP_RANK=5")],
        [PS.replace("4711", "4700").format("RANK=5")],
        [RAS.format(8, 64, 7, 8)],
        ["$ py-spy dump -p 4711    # not rank 5"],
        ["rank 5 waits for pid 4711"],
    ],
    ids=range(12),
)
def test_process_that_nothing_or_two_things_name_is_no_rank(
    tmp_path: Path, told: list[str]
) -> None:
    assert not blamed(tmp_path, *told, "", *STACK, *WAITS)


@pytest.mark.parametrize(
    "head",
    [
        "ranks 0-4 look like this:",
        "rank 4 and rank 5 look like this:",
        "this is what rank 5 waits for:",
        "the process that rank 5 talks to:",
        "not rank 5, but the launcher:",
        "[rank5]: loading the table from rank 5:",
        "everybody but rank 5:",
    ],
)
def test_sentence_about_others_names_nobody(tmp_path: Path, head: str) -> None:
    assert not blamed(tmp_path, *WAITS, "", head, "", *STACK)


def test_own_line_with_process_and_environment_still_tells_whose_the_log_is(tmp_path: Path) -> None:
    lines = ["started pid 4711 RANK=5 LOCAL_RANK=1 WORLD_SIZE=8", "ValueError: no"]

    assert blamed(tmp_path, *lines) == {5}
