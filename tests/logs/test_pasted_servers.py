"""File servers that do not answer, beside lists of processes that wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

WHERE = "hang while reading shards; ranks 4-7 run on gpu-2"
COMMANDS = ("ps -eo pid,stat,wchan:32,cmd | grep train", "dmesg -T | tail -3")
PROMPTS = {
    "root": "root@gpu-2:~# {0}",
    "bracket": "[root@gpu-2 data]# {0}",
    "chat": "11:02 <ana> [root@gpu-2 ~]# {0}",
    "chat of names": "[11:02] ana: root@gpu-2:~$ {0}",
    "ssh": "$ ssh gpu-2 {0}",
}
SILENT = {
    "nfs": ("nfs_wait_bit_killable", "nfs: server fs9 not responding, still trying"),
    "rpc": ("rpc_wait_bit_killable", "nfs: server fs9 not responding, timed out"),
    "lustre": (
        "cl_sync_io_wait",
        (
            "Lustre: sc-OST0002-osc-ff: Connection to sc-OST0002 (at 10.1.1.2@o2ib) was lost; in "
            "progress operations using this service will wait for recovery to complete"
        ),
    ),
    "ceph": ("ceph_mdsc_wait_request", "ceph: [5cdb0b32 84123]: mds0 hung"),
    "smb": ("cifs_wait_bit", r"CIFS: VFS: \\fs9 has not responded in 180 seconds. Reconnecting..."),
    "old smb": ("cifs_wait_bit", "CIFS VFS: Server fs9 has not responded in 120 seconds."),
}
AT = "[Tue Feb  4 10:5{0}:18 2025] "


def list_kept(wait: str, count: int = 4, state: str = "Dl") -> list[str]:
    return [f"{30110 + one} {state}   {wait:<32} python3 train.py" for one in range(count)]


def paste(
    prompt: str, rows: list[str], kernel: list[str], where: str = WHERE, other: str = ""
) -> list[str]:
    asked = [prompt.format(one) for one in COMMANDS]
    asked[1] = asked[1].replace("gpu-2", other or "gpu-2")
    told = [AT.format(number) + line for number, line in enumerate(kernel)]
    return [where, asked[0], *rows, asked[1], *told]


def find_blamed(report: Report) -> tuple[str, list[int]]:
    finding = first_of(report)
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_ranks_of_the_host_of_the_prompt_are_kept(tmp_path: Path, prompt: str, kind: str) -> None:
    wait, line = SILENT[kind]
    finding = first_of(say(tmp_path, *paste(PROMPTS[prompt], list_kept(wait), [line])))

    assert (finding.code, finding.culprits.ranks) == ("H116", [4, 5, 6, 7])
    assert (finding.culprits.nodes, finding.confidence) == (["gpu-2"], "likely")


def test_list_without_waits_counts_beside_a_stack(tmp_path: Path) -> None:
    rows = [
        f"u {30110 + one} 2.0 1.1 912345 81234 ? Dl 08:12 0:33 python3 train.py" for one in range(4)
    ]
    stack = ["$ ssh gpu-2 cat /proc/30110/stack", "[<0>] rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]"]
    lines = paste(PROMPTS["ssh"], [*rows, *stack], [SILENT["nfs"][1]])

    assert find_blamed(say(tmp_path, *lines)) == ("H116", [4, 5, 6, 7])


def test_paste_without_hosts_names_the_server_alone(tmp_path: Path) -> None:
    wait, line = SILENT["rpc"]
    finding = first_of(say(tmp_path, *paste("# {0}", list_kept(wait), [line])))

    assert (finding.code, finding.confidence) == ("H116", "likely")
    assert not finding.culprits.ranks
    assert "fs9" in finding.summary


@pytest.mark.parametrize(
    ("count", "where"), [(3, WHERE), (4, "hang in the reader"), (4, WHERE.replace("4-7", "0-7"))]
)
def test_processes_that_are_not_all_ranks_name_no_rank(
    tmp_path: Path, count: int, where: str
) -> None:
    wait, line = SILENT["rpc"]
    lines = paste(PROMPTS["root"], list_kept(wait, count), [line], where)

    assert find_blamed(say(tmp_path, *lines)) == ("H116", [])


def test_server_that_is_silent_to_another_host_is_not_theirs(tmp_path: Path) -> None:
    wait, line = SILENT["rpc"]
    lines = paste(PROMPTS["root"], list_kept(wait), [line], other="gpu-1")

    assert all(not one.culprits.ranks for one in say(tmp_path, *lines).findings)


@pytest.mark.parametrize("over", ["nfs: server fs9 OK", "ceph: [5cdb0b32 84123]: mds0 came back"])
def test_server_that_answers_again_keeps_nobody(tmp_path: Path, over: str) -> None:
    wait, line = SILENT["ceph" if "ceph" in over else "nfs"]
    report = say(tmp_path, *paste(PROMPTS["root"], list_kept(wait), [line, over]))

    assert all(not one.culprits.ranks for one in report.findings)


def test_processes_that_run_are_not_kept(tmp_path: Path) -> None:
    rows = list_kept("-", state="Rl")
    report = say(tmp_path, *paste(PROMPTS["root"], rows, [SILENT["nfs"][1]]))

    assert all(not one.culprits.ranks for one in report.findings)
