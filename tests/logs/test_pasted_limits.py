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
    "first of several": [
        "[me@login]$ srun -N2 bash -c 'hostname; ulimit -l; ulimit -n; free -g | grep Mem'",
        *("n6", "unlimited", "131072", "Mem:  1007  22  977", "n7", "64", "131072"),
    ],
    "last of several": [
        "$ srun -N2 sh -c 'hostname && nproc && ulimit -n && ulimit -l'",
        *("n6", "128", "1048576", "unlimited", "n7", "128", "1048576", "64"),
    ],
    "several behind the host": [
        '$ pdsh -w n[6-7] "ulimit -n; ulimit -l"',
        *("n6: 131072", "n6: unlimited", "n7: 131072", "n7: 64"),
    ],
    "in one line": [
        "$ srun -N2 sh -c 'echo $(hostname) $(ulimit -n) $(ulimit -l)'",
        *("n6 131072 unlimited", "n7 131072 64"),
    ],
    "named in one line": [
        "$ srun -l sh -c 'echo \"$(hostname -s) memlock=$(ulimit -l) nofile=$(ulimit -n)\"'",
        *("0: n6 memlock=unlimited nofile=1024", "1: n7 memlock=64 nofile=1024"),
    ],
    "echo": ["$ srun -N2 -l limits.sh", "n6: ulimit -l: unlimited", "n7: ulimit -l: 64"],
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
        ["$ srun -N1 sh -c 'hostname; ulimit -n; ulimit -l'", "n7", "64", "unlimited"],
        ["$ srun -N1 sh -c 'hostname; ulimit -l; nproc'", "n7", "unlimited", "64"],
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
        "files first",
        "processors next",
    ],
)
def test_other_numbers_are_no_limit(tmp_path: Path, shown: list[str]) -> None:
    assert first_of(say(tmp_path, *FELT, *shown)).code == "C210"


UCX = (
    "[1760000000.123456] [n7:551  :0]          ib_md.c:309  UCX  ERROR {0}(address=0x7f11c000, "
    "length=4194304, access=0x10000f) failed: Cannot allocate memory{1}"
)
TOLD = " : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"


@pytest.mark.parametrize("call", ["ibv_reg_mr", "ibv_create_cq", "ibv_exp_reg_mr"])
def test_limit_that_ucx_tells_itself_is_read(tmp_path: Path, call: str) -> None:
    found = first_of(say(tmp_path, UCX.format(call, TOLD)))
    assert found.code == "N404"
    assert "64 KiB" in found.summary

    assert first_of(say(tmp_path, UCX.format(call, ""))).code == "C210"
    assert first_of(say(tmp_path, UCX.format(call, ""), *SHOWN["prompt"])).code == "N404"


@pytest.mark.parametrize("tool", SHOWN)
def test_low_limit_that_nobody_felt_breaks_nothing(tmp_path: Path, tool: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 1"]
    report = say(tmp_path, *SHOWN[tool], *(f"[rank3]: {line}" for line in raised))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C204"]


def test_limit_with_its_name_is_read_beside_that_of_an_older_host(tmp_path: Path) -> None:
    lines = [
        (
            "[1,8]<stdout>:cn102:41230:41430 [0] misc/ibvwrap.cc:252 NCCL WARN Call to "
            "ibv_create_cq failed with error Cannot allocate memory"
        ),
        "inside the job:",
        "$ ulimit -a | egrep 'locked|open|proc'",
        "max locked memory           (kbytes, -l) 8192",
        "open files                          (-n) 1048576",
        "on an old-image node:",
        "max locked memory           (kbytes, -l) unlimited",
    ]
    assert first_of(say(tmp_path, *lines)).code == "N404"

    lines[3] = lines[3].replace("8192", "unlimited")
    assert "N404" not in {one.code for one in say(tmp_path, *lines).findings}
