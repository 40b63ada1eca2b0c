"""How many ranks there are, and which one is a local rank, by the commands that people paste."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.pipeline import diagnose_paths, read_evidence

TRACE = [
    "Traceback (most recent call last):",
    '  File "/ceph/me/t.py", line 18, in <module>',
    "    x = table[key]",
    "KeyError: 'a'",
    (
        "[2023-12-04 09:02:17,712] torch.distributed.elastic.multiprocessing.api: [ERROR] failed "
        "(exitcode: 1) local_rank: 2 (pid: 8134) of binary: /ceph/me/env/bin/python"
    ),
]
ON_FIRST = {
    "alone": ["$ torchrun --nproc-per-node=8 t.py"],
    "standalone": ["$ torchrun --standalone --nproc_per_node 8 t.py"],
    "first host": ["[n41] $ torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 t.py"],
    "accelerate": ["$ accelerate launch --num_processes 8 t.py"],
    "nothing": [],
}
ON_SECOND = {
    "torchrun": ["[n42] $ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 t.py"],
    "old": [
        (
            "me@n42:~$ python -m torch.distributed.launch --nnodes 2 --node_rank 1 "
            "--nproc_per_node 8 t.py"
        )
    ],
    "lines": [
        "$ NCCL_DEBUG=WARN torchrun \\",
        "    --nnodes 2 --node_rank 1 \\",
        "    --nproc_per_node 8 t.py",
    ],
}
ANYWHERE = {
    "no place": ["$ torchrun --nnodes=2 --nproc-per-node=8 --rdzv-endpoint=n41:29500 t.py"],
    "both": [
        "[n41] $ torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 t.py",
        "[n42] $ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 t.py",
    ],
    "hosts in a file": ["$ deepspeed --hostfile hf --num_gpus 8 t.py"],
    "hosts in a variable": ["$ PET_NNODES=2 torchrun --nproc-per-node=8 t.py"],
    "variable": ["$ torchrun --nnodes=$N --node-rank=$R --nproc-per-node=8 t.py"],
}
WAIT = (
    "[rank{0}]:[E312 02:41:07.553810226 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=907, OpType=ALLREDUCE, NumelIn=4096, "
    "NumelOut=4096, Timeout(ms)=600000) ran for 600022 milliseconds before timing out."
)


@pytest.mark.parametrize("form", ON_FIRST)
def test_local_rank_of_the_first_host_is_the_rank(tmp_path: Path, form: str) -> None:
    found = first_of(say(tmp_path, *ON_FIRST[form], *TRACE))

    assert (found.code, found.culprits.ranks) == ("C204", [2])


@pytest.mark.parametrize("form", ON_SECOND)
def test_local_rank_of_a_later_host_is_counted_from_its_first_rank(
    tmp_path: Path, form: str
) -> None:
    found = first_of(say(tmp_path, *ON_SECOND[form], *TRACE))

    assert (found.code, found.culprits.ranks) == ("C204", [10])


@pytest.mark.parametrize("form", ANYWHERE)
def test_local_rank_of_one_of_several_hosts_is_nobody(tmp_path: Path, form: str) -> None:
    found = first_of(say(tmp_path, *ANYWHERE[form], *TRACE))

    assert (found.code, found.culprits.ranks) == ("C204", [])


def test_row_of_a_table_tells_the_rank_without_how_it_ended(tmp_path: Path) -> None:
    row = "  rank      : 10 (local_rank: 2)"

    assert first_of(say(tmp_path, *ANYWHERE["both"], *TRACE, row)).culprits.ranks == [10]


@pytest.mark.parametrize(
    ("command", "summary"),
    [
        ("$ torchrun --nproc_per_node=4 t.py", "all 4 ranks waited"),
        ("$ mpirun -np 4 python t.py", "all 4 ranks waited"),
        ("$ torchrun --nproc_per_node=8 t.py", ""),
        ("$ torchrun --nnodes=2 --nproc_per_node=4 t.py", ""),
        ("$ srun -N2 torchrun --nproc_per_node=4 t.py", ""),
        ("I tried torchrun --nproc_per_node=4 and it works", ""),
    ],
)
def test_all_ranks_of_a_command_are_all_ranks(tmp_path: Path, command: str, summary: str) -> None:
    report = say(tmp_path, command, *(WAIT.format(rank) for rank in range(4)))

    told = [one.summary for one in report.findings if one.code == "H122"]
    assert [text[: len(summary)] for text in told] == [summary] * bool(summary)


def test_ranks_beyond_a_command_are_of_another_job(tmp_path: Path) -> None:
    report = say(tmp_path, "$ torchrun --nproc_per_node=2 t.py", *map(WAIT.format, range(4)))

    assert not [one for one in report.findings if one.code == "H122"]


@pytest.mark.parametrize(
    "said",
    [
        "ranks 0-7 on n41, ranks 8-15 on n42",
        "job of n41 and n42, ranks 0-7 on n41, ranks 8-15 on n42",
        "n41 has ranks 0-7, n42 has ranks 8-15",
        "ranks 0-7 on n41, 8-15 on n42",
        "(ranks 0..7 are on n41 and 8..15 are on n42)",
        "hosts: n41: ranks 0-7; n42: 8-15",
        "n41 runs ranks 0 to 7, n42 8 to 15",
    ],
)
def test_host_whose_ranks_are_said_has_them_in_order(tmp_path: Path, said: str) -> None:
    own = [f"n42: {line}" for line in TRACE]

    found = first_of(say(tmp_path, said, "n41: hello", "n41: hello", *own, "n42: end"))

    assert (found.code, found.culprits.ranks) == ("C204", [10])


def test_rank_is_on_the_host_that_is_said_to_have_it(tmp_path: Path) -> None:
    lines = [
        "2 nodes, ranks 0-7 on h1, ranks 8-15 on h2",
        *(WAIT.format(rank) for rank in (0, 13)),
        (
            "h2:61233:62899 [5] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_5:1 Got async "
            "event : port error"
        ),
    ]

    assert first_of(say(tmp_path, *lines)).culprits.nodes == ["h2"]
    events = read_evidence(tmp_path).logs.events
    assert {one.rank: one.node for one in events if one.rank >= 0} == {0: "h1", 13: "h2"}


def test_each_log_tells_which_host_it_is_of(tmp_path: Path) -> None:
    command = "$ torchrun --nnodes=2 --node-rank={0} --nproc-per-node=8 t.py"
    (tmp_path / "a.log").write_text(command.format(0) + "\nloading\n")
    (tmp_path / "b.log").write_text("\n".join([command.format(1), *TRACE]) + "\n")

    found = first_of(diagnose_paths([tmp_path]))

    assert (found.code, found.culprits.ranks) == ("C204", [10])
