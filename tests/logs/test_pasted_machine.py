"""What machines show of processes, ports and slots in pasted texts, and what only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence, Report

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=188, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
WAITS = [WAIT.format(rank) for rank in (0, 1, 3)]
NAMED = [f"rank {rank} is pid 4821{rank}" for rank in range(4)]
NFS_STACK = """\
[<0>] rpc_wait_bit_killable+0x24/0xb0 [sunrpc]
[<0>] __rpc_execute+0x101/0x3f0 [sunrpc]
[<0>] nfs4_proc_getattr+0x83/0x120 [nfsv4]
[<0>] vfs_statx+0x89/0xe0
[<0>] do_syscall_64+0x5c/0xc0
[<0>] entry_SYSCALL_64_after_hwframe+0x44/0xa9""".splitlines()
OLD_STACK = """\
[<ffffffffc05f8a34>] rpc_wait_bit_killable+0x24/0xb0 [sunrpc]
[<ffffffffc0611f0d>] nfs_wait_bit_killable+0x1d/0x80 [nfs]
[<ffffffff8864e1d0>] SyS_newfstat+0x2e/0x60
[<ffffffffffffffff>] 0xffffffffffffffff""".splitlines()
DRIVER_STACK = """\
[<0>] rwsem_down_write_slowpath+0x1f3/0x610
[<0>] os_acquire_rwlock_write+0x35/0x50 [nvidia]
[<0>] _nv044022rm+0x9/0x20 [nvidia]
[<0>] nvidia_unlocked_ioctl+0x1d/0x30 [nvidia]
[<0>] __x64_sys_ioctl+0x91/0xd0""".splitlines()
IDLE_STACK = """\
[<0>] futex_wait_queue+0x60/0x90
[<0>] do_futex+0x105/0x1b0
[<0>] do_syscall_64+0x5c/0xc0""".splitlines()


def names_of(report: Report) -> set[str]:
    return {one.code for one in report.findings}


# ------------------------------------------------------------------------------ /proc/PID


@pytest.mark.parametrize("stack", [NFS_STACK, OLD_STACK], ids=["new", "old"])
@pytest.mark.parametrize("prefix", ["", "2026-03-04T10:12:32.5Z stdout F "])
@pytest.mark.parametrize(
    "head",
    ["$ sudo cat /proc/48212/stack", "==> /proc/48212/stack <==", "# pid 48212, /proc/48212/stack"],
)
def test_rank_whose_kernel_stack_waits_for_a_file_server_is_named(
    tmp_path: Path, stack: list[str], prefix: str, head: str
) -> None:
    lines = [prefix + line for line in (*NAMED, head, *stack)]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H116", [2])


def test_stacks_of_all_ranks_name_the_one_that_waits_for_files(tmp_path: Path) -> None:
    lines = list(NAMED)
    for rank in range(4):
        lines += [f"== 4821{rank} ==", *(NFS_STACK if rank == 1 else IDLE_STACK)]

    assert blamed_of(say(tmp_path, "cat /proc/48210/stack", *lines))[0] == {1}


@pytest.mark.parametrize(
    "lines",
    [
        ["/proc/48212/status:State:\tD (disk sleep)", "/proc/48212/wchan:rpc_wait_bit_killable"],
        [
            "$ grep -E 'Name|State' /proc/48212/status",
            "Name:\tpython3",
            "State:\tD (disk sleep)",
            "$ cat /proc/48212/wchan",
            "nfs_wait_bit_killable",
        ],
        ["rank 2: state=D wchan=fuse_get_req"],
    ],
    ids=["grep", "cat", "words"],
)
def test_state_and_wait_of_a_process_tell_the_same(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(say(tmp_path, *NAMED, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H116", [2])


def test_rank_that_its_driver_keeps_is_named(tmp_path: Path) -> None:
    status = ["$ cat /proc/48213/status", "Name:\tpython", "State:\tD (disk sleep)"]
    lines = [*NAMED, *status, "$ cat /proc/48213/stack", *DRIVER_STACK]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H123", [3])
    assert finding.confidence is Confidence.LIKELY


def test_rank_that_is_stopped_is_named_by_its_status(tmp_path: Path) -> None:
    lines = ["$ head -3 /proc/48211/status", "Name:\tpython", "Umask:\t0022", "State:\tT (stopped)"]

    finding = first_of(say(tmp_path, *NAMED, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H113", [1])


def test_task_that_the_kernel_calls_hung_is_judged_by_its_stack(tmp_path: Path) -> None:
    frames = ["__schedule+0x2d1/0x870", "rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]"]
    stamp = "[Tue Mar  4 02:24:01 2025] "
    lines = [
        f"{stamp}INFO: task python3:48212 blocked for more than 120 seconds.",
        f"{stamp}      Tainted: P           OE     5.15.0-105-generic #115-Ubuntu",
        f"{stamp}task:python3         state:D stack:    0 pid:48212 ppid: 48100 flags:0x00000004",
        f"{stamp}Call Trace:",
        f"{stamp} <TASK>",
        *(f"{stamp} {frame}" for frame in frames),
    ]

    finding = first_of(say(tmp_path, *NAMED, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H116", [2])


@pytest.mark.parametrize(
    "lines",
    [
        ["$ cat /proc/48212/stack", *IDLE_STACK],
        ["$ cat /proc/48212/stack", "cat: /proc/48212/stack: Permission denied"],
        ["/proc/48212/status:State:\tR (running)", "/proc/48212/wchan:0"],
        ["$ cat /proc/48212/status", "Name:\tnfsd", "State:\tD (disk sleep)", *NFS_STACK],
        ["$ cat /proc/48212/status", "Name:\tpython", "State:\tS (sleeping)"],
        ["INFO cannot read /proc/48212/stack, nor /proc/48212/status"],
        ["INFO storage: rpc_wait_bit_killable is where nfs sleeps"],
    ],
)
def test_process_that_sleeps_or_runs_is_not_kept(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *NAMED, *lines)

    assert blamed_of(report) == (set(), set())
    assert not names_of(report) & {"H116", "H123", "H113"}


# ------------------------------------------------------------------------------ lists of processes

AUX = "ubuntu   4821{0}  101  3.1 48213948 4012396 pts/0  {1:4} 10:02  12:31 python -u train.py"
PLAIN = " 4821{0} {1:4} {2:24} python -u train.py"
UNNUMBERED = "{1:4} {2:24} python -u train.py --rank={0}"


@pytest.mark.parametrize(
    ("form", "odd", "code"),
    [
        (AUX, ("Tl", ""), "H113"),
        (AUX, ("Tl+", ""), "H113"),
        (PLAIN, ("Dl", "rpc_wait_bit_killable"), "H116"),
        (PLAIN, ("Tsl", "do_signal_stop"), "H113"),
        (UNNUMBERED, ("Dl+", "nfs4_run_open_task"), "H116"),
        (UNNUMBERED, ("Tl", "do_signal_stop"), "H113"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "n3: "])
def test_rows_without_a_heading_name_who_does_not_run(
    tmp_path: Path, form: str, odd: tuple[str, str], code: str, prefix: str
) -> None:
    rows = [form.format(rank, *(odd if rank == 2 else ("Rl", "-"))) for rank in range(4)]

    report = say(tmp_path, *(prefix + line for line in (*NAMED, *rows)))

    assert (first_of(report).code, first_of(report).culprits.ranks) == (code, [2])


@pytest.mark.parametrize(
    "head",
    [
        "STAT WCHAN                    CMD",
        "S WCHAN                    COMMAND",
        "STAT WCHAN                    COMMAND",
    ],
)
def test_heading_without_numbers_of_processes_is_read(tmp_path: Path, head: str) -> None:
    rows = [
        UNNUMBERED.format(rank, "D" if rank == 1 else "R", "fuse_simple_request")
        for rank in range(4)
    ]

    finding = first_of(say(tmp_path, head, *rows))

    assert (finding.code, finding.culprits.ranks) == ("H116", [1])


TOP = "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND"


def test_heading_of_top_is_read(tmp_path: Path) -> None:
    row = "  4821{0} ubuntu    20   0   45.2g   3.9g 512345 {1}  99.7   3.1  12:31.10 python"
    rows = [row.format(rank, "T" if rank == 3 else "R") for rank in range(4)]

    finding = first_of(say(tmp_path, *NAMED, TOP, *rows))

    assert (finding.code, finding.culprits.ranks) == ("H113", [3])


@pytest.mark.parametrize(
    "rows",
    [
        [AUX.format(rank, "Sl") for rank in range(4)],
        [PLAIN.format(rank, "Dl", "rpc_wait_bit_killable") for rank in range(4)],
        ["ubuntu   9999  0.0  0.1 1234 4321 pts/0  Tl   10:02  0:00 vim notes.txt"],
        ["INFO 48212 Dl done", "the state Tl of python is stopped"],
        ["Sl 12 Dl 13 loss 2.0 python"],
    ],
)
def test_rows_of_which_none_is_odd_name_nobody(tmp_path: Path, rows: list[str]) -> None:
    report = say(tmp_path, *NAMED, *rows)

    assert blamed_of(report)[0] == set()
    assert "H113" not in names_of(report)


# ------------------------------------------------------------------------------ ports

IBSTAT = """\
CA '{0}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: {1}
\t\tPhysical state: {2}
\t\tRate: 400
\t\tBase lid: 12
\t\tLink layer: InfiniBand"""
IBSTATUS = """\
Infiniband device '{0}' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:a088:c203:0012:1234
\tbase lid:\t 0x0
\tstate:\t\t 1: {1}
\tphys state:\t 2: {2}
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand
"""
DEVINFO = """\
hca_id:\t{0}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_{1} (1)
\t\t\tphys_state:\t\t{2} (2)
\t\t\tlink_layer:\t\tInfiniBand"""
RDMA = "link {0}/1 state {1} physical_state {2} netdev ib0"
FORMS = [IBSTAT, IBSTATUS, DEVINFO, RDMA]
FORM_NAMES = ["ibstat", "ibstatus", "ibv_devinfo", "rdma link"]


def show(form: str, *odd: tuple[str, str, str]) -> list[str]:
    """Write the ports of a host, of which some are odd."""
    usual = [(f"mlx5_{card}", "Active", "LinkUp") for card in (0, 1, 2)]
    ports = [
        (card, state.upper(), link) if form is not IBSTAT else (card, state, link)
        for card, state, link in (*usual, *odd)
    ]
    return [line for port in ports for line in form.format(*port).splitlines()]


@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("state", ["Down", "Initializing"])
@pytest.mark.parametrize("prefix", ["", "n7: "])
def test_port_that_is_down_beside_others_is_told(
    tmp_path: Path, form: str, state: str, prefix: str
) -> None:
    lines = show(form, ("mlx5_3", state, "Polling"))

    report = say(tmp_path, *(prefix + line for line in (*WAITS, *lines)))

    assert first_of(report).code == "N410"
    assert "mlx5_3" in first_of(report).summary
    assert blamed_of(report) == (set(), {"n7"} if prefix else set())


def test_prompt_tells_whose_port_is_down(tmp_path: Path) -> None:
    lines = ["root@gpu-12:~# ibstat", *show(IBSTAT, ("mlx5_3", "Down", "Polling"))]

    assert blamed_of(say(tmp_path, *WAITS, *lines)) == (set(), {"gpu-12"})


def test_port_that_is_up_on_other_hosts_is_told_even_if_it_is_off(tmp_path: Path) -> None:
    good = [f"n1: {line}" for line in show(IBSTAT, ("mlx5_3", "Active", "LinkUp"))]
    bad = [f"n2: {line}" for line in show(IBSTAT, ("mlx5_3", "Down", "Disabled"))]

    assert blamed_of(say(tmp_path, *good, *bad)) == (set(), {"n2"})


@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize(
    "odd", [("mlx5_3", "Active", "LinkUp"), ("mlx5_3", "Down", "Disabled")], ids=["up", "off"]
)
def test_port_that_is_up_or_switched_off_is_no_trouble(
    tmp_path: Path, form: str, odd: tuple[str, str, str]
) -> None:
    assert "N410" not in names_of(say(tmp_path, *WAITS, *show(form, odd)))


def test_port_that_is_down_on_all_hosts_is_meant_so(tmp_path: Path) -> None:
    lines = show(IBSTAT, ("mlx5_3", "Down", "Polling"))
    both = [f"n{node}: {line}" for node in (1, 2) for line in lines]

    assert "N410" not in names_of(say(tmp_path, *WAITS, *both))


@pytest.mark.parametrize(
    "line", ["INFO State: Down", "port state: 1: DOWN of the valve", "CA 'root' was renewed"]
)
def test_states_of_other_things_are_no_ports(tmp_path: Path, line: str) -> None:
    assert "N410" not in names_of(say(tmp_path, *WAITS, line))


# ------------------------------------------------------------------------------ PCI Express

CARD = "17:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)"
NIC = "18:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]"
BRIDGE = "15:01.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)"
CAP = "\t\tLnkCap:\tPort #0, Speed {0}GT/s, Width x{1}, ASPM not supported"
STA = "\t\tLnkSta:\tSpeed {0}GT/s{1}, Width x{2}{3}"
LIMITED = (
    "[    3.812345] {0}: {1} Gb/s available PCIe bandwidth, limited by {2} GT/s PCIe x{3} link at "
    "0000:16:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)
QUERY = """\
GPU 00000000:17:00.0
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : {0}
                Device Current            : {0}
                Device Max                : 5
            Link Width
                Max                       : 16x
                Current                   : {1}x"""
ROWS = """\
index, name, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max
0, NVIDIA H100 80GB HBM3, {0}, 5, 16, 16
1, NVIDIA H100 80GB HBM3, {0}, 5, {1}, 16"""


@pytest.mark.parametrize(
    "lines",
    [
        [CARD, CAP.format(32, 16), STA.format(32, "", 8, "")],
        [CARD, CAP.format(32, 16), STA.format(16, " (downgraded)", 8, " (downgraded)")],
        [f"0000:{CARD}", STA.format(32, " (ok)", 4, " (downgraded)")],
        [NIC, CAP.format(32, 16), STA.format(8, " (downgraded)", 16, " (ok)")],
        [LIMITED.format("pci 0000:17:00.0", "126.024", "32.0", 4)],
        [LIMITED.format("mlx5_core 0000:18:00.0", "126.024", "8.0", 16)],
        QUERY.format(5, 8).splitlines(),
        ROWS.format(5, 8).splitlines(),
    ],
)
@pytest.mark.parametrize("prefix", ["", "n4: "])
def test_link_that_is_narrower_than_it_could_be_is_told(
    tmp_path: Path, lines: list[str], prefix: str
) -> None:
    lines = ["what this host shows", "of its cards", *lines]
    report = say(tmp_path, *(prefix + line for line in lines), "[rank0]: step 3 loss 2.0")

    assert first_of(report).code == "N415"
    assert blamed_of(report) == (set(), {"n4"} if prefix else set())


@pytest.mark.parametrize(
    "lines",
    [
        # Devices lower their speed while they are idle.
        [CARD, CAP.format(32, 16), STA.format(2.5, " (downgraded)", 16, " (ok)")],
        [CARD, CAP.format(32, 16), STA.format(32, " (ok)", 16, " (ok)")],
        # A bridge is as wide as what is plugged in behind it.
        [BRIDGE, CAP.format(32, 16), STA.format(2.5, " (downgraded)", 4, " (downgraded)")],
        [LIMITED.format("pci 0000:17:00.0", "31.504", "2.5", 16)],
        QUERY.format(1, 16).splitlines(),
        ROWS.format(1, 16).splitlines(),
        ["INFO the link was downgraded: Width x8"],
    ],
)
def test_link_that_sleeps_or_is_whole_is_no_trouble(tmp_path: Path, lines: list[str]) -> None:
    assert "N415" not in names_of(say(tmp_path, *lines, "[rank0]: step 3 loss 2.0"))


XID_79 = "gn07 kernel: NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus."
LACKS = [
    "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2]",
    "RuntimeError: CUDA error: invalid device ordinal",
    "ValueError: 8 devices requested, but only 7 found",
]


@pytest.mark.parametrize("message", LACKS)
def test_device_that_fell_off_the_bus_explains_a_program_that_lacks_one(
    tmp_path: Path, message: str
) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', message]
    finding = first_of(say(tmp_path, *raised, f"Oct 02 22:58:14 {XID_79}"))

    assert (finding.code, finding.culprits.nodes) == ("C208", ["gn07"])


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (LACKS[2], "Oct 02 22:58:14 gn07 kernel: NVRM: Xid (PCI:0000:c8:00): 31, MMU Fault"),
        ("KeyError: 'devices'", f"Oct 02 22:58:14 {XID_79}"),
    ],
)
def test_other_trouble_of_a_machine_explains_no_lack(
    tmp_path: Path, message: str, line: str
) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', message]
    told = [
        one.code for one in say(tmp_path, *raised, line).findings if one.confidence != "possible"
    ]

    assert told != ["C208"]
