"""Limits of locked memory that somebody printed beside network cards that got no memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FELT = [
    (
        "n7:551:553 [1] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error "
        "Cannot allocate memory"
    ),
    "n7:551:553 [1] NCCL INFO transport/net_ib.cc:521 -> 2",
]
SHOWN = {
    "srun": ["$ srun -N2 bash -c 'hostname; ulimit -l'", "n6", "unlimited", "n7", "64"],
    "more than the limit": [
        "$ srun -N2 sh -c 'hostname; ulimit -l; free -g'",
        "n6",
        "unlimited",
        "Mem:  1007  21  940",
        "n7",
        "64",
        "Mem:  1007  20  941",
    ],
    "pdsh": ["# pdsh -w n[6-7] ulimit -l", "n6: unlimited", "n7: 8192"],
    "clush": ["$ clush -bw n6,n7 'ulimit -l'", "--------", "n7", "--------", "64"],
    "prompt": ["me@n7:~$ ulimit -l", "64"],
    "all": ["[me@n7 ~]$ ulimit -a", "max locked memory       (kbytes, -l) 64"],
    "proc": [
        "root@n7:/# cat /proc/551/limits",
        "Max locked memory         65536                65536                bytes",
    ],
    "both": ["me@n7:~$ ulimit -l", "unlimited", "me@login1:~$ srun -w n7 -l ulimit -l", "n7: 64"],
    "deep": [
        "me@n7:~$ ulimit -a",
        *(f"{name}   (kbytes, -{name[0]}) unlimited" for name in ("core", "data", "file", "seg")),
        *(f"{name}   (-{name[0]}) 0" for name in ("prio", "nice", "signals", "args")),
        "max locked memory       (kbytes, -l) 64",
    ],
    "prlimit": [
        "me@n7:~$ prlimit -p 551",
        "MEMLOCK    max locked-in-memory address space  65536  65536 bytes",
    ],
    "verbs": ["libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes."],
    "Open MPI": ["  Local host:              n7", "  Memlock limit:           65536"],
    "cut": ["unlimited", "me@n7 ~]$ ulimit -l", "64"],
}


@pytest.mark.parametrize("tool", SHOWN)
def test_low_limit_of_the_host_that_felt_it_is_told(tmp_path: Path, tool: str) -> None:
    found = first_of(say(tmp_path, *FELT, *SHOWN[tool]))

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == ("N404", ["n7"], [])
    assert "KiB" in found.summary


@pytest.mark.parametrize(
    "shown",
    [
        ["me@n7:~$ ulimit -l", "unlimited"],
        ["$ pdsh -w n[6-7] ulimit -l", "n6: 64", "n7: unlimited"],
        ["set ulimit -l unlimited, as the FAQ says", "it took 64 tries"],
        ["$ hostname; nproc", "n7", "64"],
        ["me@n7:~$ ulimit -n", "64"],
        ["$ ulimit -l", "64"],
        ["me@login1:~$ ulimit -l", "64"],
        ["$ srun -N1 sh -c 'hostname; nproc; ulimit -l'", "n7", "64", "unlimited"],
        ["me@n7:~$ ulimit -a", "core file size          (blocks, -c) 0", "64"],
    ],
    ids=[
        "high",
        "other host",
        "advice",
        "processors",
        "files",
        "no host",
        "login",
        "two numbers",
        "all",
    ],
)
def test_other_numbers_are_no_limit(tmp_path: Path, shown: list[str]) -> None:
    assert first_of(say(tmp_path, *FELT, *shown)).code == "C210"


@pytest.mark.parametrize("tool", SHOWN)
def test_low_limit_that_nobody_felt_breaks_nothing(tmp_path: Path, tool: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 1"]
    report = say(tmp_path, *SHOWN[tool], *(f"[rank3]: {line}" for line in raised))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C204"]
