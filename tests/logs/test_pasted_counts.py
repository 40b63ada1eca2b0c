"""Devices that a host has fewer of than others, or than its PCI shows, by what people counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

TRACE = [
    "Traceback (most recent call last):",
    '  File "/ceph/me/t.py", line 18, in <module>',
    "    torch.cuda.set_device(local_rank)",
    "RuntimeError: CUDA error: invalid device ordinal",
]
SIGNED = [f"[rank15]: {line}" for line in TRACE]
TABLE = [
    (
        "[2023-12-04 09:02:17,712] torch.distributed.elastic.multiprocessing.api: [ERROR] failed "
        "(exitcode: 1) local_rank: 7 (pid: 8134) of binary: /ceph/me/env/bin/python"
    ),
    "Root Cause (first observed failure):",
    "[0]:",
    "  host      : n42",
    "  rank      : 15 (local_rank: 7)",
    "  exitcode  : 1 (pid: 8134)",
]
SEVEN = [f"GPU {at}: NVIDIA A100-SXM4-40GB (UUID: GPU-0d1f0c6b-{at})" for at in range(7)]
EIGHT = [*SEVEN, "GPU 7: NVIDIA A100-SXM4-40GB (UUID: GPU-0d1f0c6b-7)"]
SHOWN = {
    "lists": ["[n41] $ nvidia-smi -L", *EIGHT, "[n42] $ nvidia-smi -L", *SEVEN],
    "list and count": ["[n41] $ nvidia-smi -L", *EIGHT, "[n42] $ nvidia-smi -L | wc -l", "7"],
    "counts": [
        "me@n41:~$ nvidia-smi --list-gpus | wc -l",
        "8",
        "me@n42:~$ nvidia-smi --list-gpus | wc -l",
        "7",
    ],
    "query": [
        "me@n41:~$ nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
        "8",
        "me@n42:~$ nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
        "7",
    ],
    "pdsh": ["$ pdsh -w n[41-42] 'nvidia-smi -L | wc -l'", "n41: 8", "n42: 7"],
    "srun": ["$ srun -N2 bash -c 'hostname; ls /dev/nvidia[0-9]* | wc -l'", "n41", "8", "n42", "7"],
    "ssh loop": [
        "$ for h in n41 n42; do echo -n \"$h \"; ssh $h 'nvidia-smi -L | wc -l'; done",
        "n41 8",
        "n42 7",
    ],
    "torch": [
        "me@n42:~$ python -c 'import torch; print(torch.cuda.device_count())'",
        "7",
        "me@n41:~$ python -c 'import torch; print(torch.cuda.device_count())'",
        "8",
    ],
    "launched": [
        "[n42] $ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 t.py",
        "[n42] $ nvidia-smi -L | wc -l",
        "7",
    ],
    "PCI": [
        "root@n42:~# lspci | grep -i nvidia | grep -c A100",
        "8",
        "root@n42:~# nvidia-smi -L | wc -l",
        "7",
    ],
    "AMD": [
        "me@n41:~$ rocm-smi --showid | grep -c 'Device Name'",
        "8",
        "me@n42:~$ rocm-smi --showid | grep -c 'Device Name'",
        "7",
    ],
}
SAME = {
    "no figures": [],
    "all of four": [
        "[n42] $ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 t.py",
        *("[n41] $ nvidia-smi -L | wc -l", "4", "[n42] $ nvidia-smi -L | wc -l", "4"),
    ],
    "four": ["$ torchrun --nproc-per-node=8 t.py", "me@n42:~$ nvidia-smi -L | wc -l", "4"],
    "eight": ["[n41] $ nvidia-smi -L", *EIGHT, "[n42] $ nvidia-smi -L", *EIGHT],
    "other host": ["[n41] $ nvidia-smi -L | wc -l", "7", "[n43] $ nvidia-smi -L | wc -l", "8"],
    "other number": ["[n41] $ nvidia-smi -L | wc -l", "8", "[n42] $ ls | wc -l", "7"],
    "hidden": [
        "[n41] $ nvidia-smi -L | wc -l",
        "8",
        (
            "[n42] $ CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 python -c 'import torch; "
            "print(torch.cuda.device_count())'"
        ),
        "7",
    ],
}


@pytest.mark.parametrize("trace", [[*TRACE, *TABLE], SIGNED], ids=["table", "signed"])
@pytest.mark.parametrize("form", SHOWN)
def test_host_that_lacks_a_device_is_named(tmp_path: Path, form: str, trace: list[str]) -> None:
    found = first_of(say(tmp_path, *trace, *TABLE, *SHOWN[form]))

    assert (found.code, found.culprits.nodes) == ("N411", ["n42"])
    assert found.culprits.ranks == [15]
    assert "7" in found.summary


@pytest.mark.parametrize(
    "shown",
    [
        ["$ lspci | grep -ic a100", "8", "$ nvidia-smi -L | wc -l", "7"],
        ["$ torchrun --nproc-per-node=8 t.py", "$ nvidia-smi -L", *SEVEN],
    ],
    ids=["PCI", "launched"],
)
def test_only_host_needs_no_name(tmp_path: Path, shown: list[str]) -> None:
    failed = TABLE[0], "  rank      : 7 (local_rank: 7)", "  exitcode  : 1 (pid: 8134)"

    found = first_of(say(tmp_path, *TRACE, *failed, *shown))

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == ("N411", [], [7])


def test_host_without_a_name_may_be_any_of_several(tmp_path: Path) -> None:
    shown = [
        "$ torchrun --nnodes=2 --nproc-per-node=8 t.py",
        *("$ nvidia-smi -L | wc -l", "8", "$ nvidia-smi -L | wc -l", "7"),
    ]

    assert first_of(say(tmp_path, *TRACE, *shown)).culprits.nodes == []


@pytest.mark.parametrize("form", SAME)
def test_more_ranks_than_devices_are_a_mistake_in_the_environment(
    tmp_path: Path, form: str
) -> None:
    assert first_of(say(tmp_path, *TRACE, *TABLE, *SAME[form])).code == "C210"


@pytest.mark.parametrize("form", SHOWN)
def test_device_that_nobody_lacks_ends_no_job(tmp_path: Path, form: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 1"]
    report = say(tmp_path, *SHOWN[form], *(f"[rank3]: {line}" for line in raised))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C204"]


def test_device_that_the_kernel_lost_is_told_before_it(tmp_path: Path) -> None:
    kernel = (
        "Dec  4 08:58:01 n42 kernel: NVRM: Xid (PCI:0000:c8:00): 79, pid='<unknown>', "
        "name=<unknown>, GPU has fallen off the bus."
    )

    assert first_of(say(tmp_path, kernel, *TRACE, *TABLE, *SHOWN["lists"])).code == "C208"


@pytest.mark.parametrize(
    "message",
    [
        (
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: "
            "[0, 1, 2, 3, 4, 5, 6, 7] But your machine only has: [0, 1, 2, 3, 4, 5, 6]"
        ),
        "RuntimeError: HIP error: invalid device ordinal",
        "AssertionError: Invalid device id",
    ],
)
def test_other_words_for_it_are_read(tmp_path: Path, message: str) -> None:
    raised = [f"[rank15]: {line}" for line in [*TRACE[:-1], message]]

    assert first_of(say(tmp_path, *raised, *TABLE, *SHOWN["counts"])).code == "N411"
