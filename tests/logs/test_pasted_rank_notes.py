"""What people write of one rank above what tools print of its node, or of a rank that is silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

PS = "$ ps -eo pid,stat,wchan:24,args | grep '[t]rain.py'"
ROW = "  {0} {1}   {2}   python train.py --cfg a.yaml"
KEPT = [PS, ROW.format(4120, "Dl", "rpc_wait_bit_killable")]
STOPPED = ["$ grep State /proc/4120/status", "State:  T (stopped)"]
STACK = [
    "$ cat /proc/4120/stack",
    "[<0>] rpc_wait_bit_killable+0x1e/0xb0 [sunrpc]",
    "[<0>] nfs4_proc_getattr+0x62/0x110 [nfsv4]",
]
NFS = "[7029.310877] nfs: server 10.1.0.4 not responding, still trying"
HEADS = [
    "the others wait in reduce_scatter. on the node of rank 5:",
    "On rank 5's host:",
    "# machine that runs rank 5",
    "ps on rank 5:",
]


@pytest.mark.parametrize("head", HEADS)
def test_only_process_below_the_node_of_a_rank_is_its_own(tmp_path: Path, head: str) -> None:
    for number, (lines, code) in enumerate(
        (
            ([*KEPT, NFS], "H116"),
            ([*KEPT, *STACK], "H116"),
            ([*STACK, NFS], "H116"),
            (STOPPED, "H113"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        finding = first_of(say(folder, head, *lines))

        assert (finding.code, finding.culprits.ranks) == (code, [5])


def test_comment_behind_a_command_tells_whose_the_process_is(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, STACK[0] + "     # rank 5", *STACK[1:], NFS))

    assert (finding.code, finding.culprits.ranks) == ("H116", [5])


@pytest.mark.parametrize(
    "lines",
    [
        ["on the node of rank 5:", *KEPT, ROW.format(4121, "Dl", "rpc_wait_bit_killable"), NFS],
        ["rank 5 waits, too.", *KEPT, NFS],
        ["on the node of local rank 5:", *KEPT, NFS],
        [*KEPT, NFS, "next I look at the node of rank 5"],
        ["on the node of rank 5:", "on the node of rank 6 and 7:", *KEPT, NFS],
    ],
    ids=["two", "no node", "local", "below", "several"],
)
def test_process_of_no_told_rank_blames_nobody(tmp_path: Path, lines: list[str]) -> None:
    assert blamed_of(say(tmp_path, *lines))[0] - {5} == set()


GSP = (
    "Feb 21 13:08:40 n9 kernel: NVRM: Xid (PCI:0000:c7:00): {xid}, pid=1403, name=python3, Timeout "
    "after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76"
)


@pytest.mark.parametrize(
    "said",
    [
        "rank 6 says nothing, not even the watchdog",
        "there is no output from rank 6",
        "all time out, only rank 6 is silent.",
        "rank 6 doesn't answer py-spy",
    ],
)
def test_silent_rank_has_the_device_of_its_number(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, said, GSP.format(xid=119, gpu=6)))

    assert (finding.code, finding.culprits.ranks) == ("C208", [6])


@pytest.mark.parametrize(
    "said",
    [
        "rank 5 says nothing",
        "ranks 0-5 and 7 time out",
        "rank 6 says nothing\nrank 7 is silent",
        "rank 6 says: timeout",
        "rank 6 never waits",
    ],
)
def test_device_of_a_rank_that_is_not_silent_blames_nobody(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, said, GSP.format(xid=119, gpu=6)))

    assert (finding.code, finding.culprits.ranks) == ("C208", [])
