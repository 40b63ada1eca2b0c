"""What people and tools say of which rank has a device, a pod or a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence, Finding
from whystuck.parse.logs.owners.said_places import HostRanks, find_order, list_host_ranks

LIST = [
    "[root@cx12 ~]# nvidia-smi",
    "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |",
    "|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0B:00.0 Off |                    0 |",
    "|   2  NVIDIA A100-SXM4-80GB          On  |   00000000:48:00.0 Off |                    0 |",
    "|   3  NVIDIA A100-SXM4-80GB          On  |   00000000:4C:00.0 Off |                    7 |",
]
QUERY = [
    "[root@cx12 ~]# nvidia-smi --query-gpu=index,pci.bus_id --format=csv",
    "index, pci.bus_id",
    *(f"{index}, 00000000:{bus}:00.0" for index, bus in enumerate(("07", "0B", "48", "4C"))),
]
BROKEN = [
    "[root@cx12 ~]# dmesg -T | grep Xid",
    "[Sat Aug  9 11:05:08 2025] NVRM: Xid (PCI:0000:4c:00): 48, pid=8123, name=python3, DBE",
]
WAIT = (
    "[rank{0}]:[E809 11:35:10.33{0}120981 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=914, OpType=ALLREDUCE, NumelIn=2048, "
    "NumelOut=2048, Timeout(ms)=1800000) ran for 1800021 milliseconds before timing out."
)
SAME = [
    "4 ranks, rank = gpu index",
    "one node; the GPU index is the rank",
    "(GPU i = rank i)",
    "gpu id == rank here",
    "ranks are in GPU order",
]


def show(finding: Finding) -> tuple[str, list[int]]:
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("table", [LIST, QUERY], ids=["list", "query"])
@pytest.mark.parametrize("said", SAME)
def test_broken_device_is_of_the_rank_that_is_said_to_have_it(
    tmp_path: Path, said: str, table: list[str]
) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 2)]

    assert show(first_of(say(tmp_path, *BROKEN, *table, said, *waits))) == ("C208", [3])
    # Nobody says it, or somebody says it of one rank alone.
    for other in ("4 ranks on 4 devices", "is gpu id == rank 0 a problem?"):
        assert show(first_of(say(tmp_path, *BROKEN, *table, other, *waits))) == ("C208", [])


HEAD = (
    "index, temperature.gpu, clocks.sm, clocks_event_reasons.active, "
    "clocks_event_reasons.hw_thermal_slowdown"
)
SLOW = [
    "ops@k12:~$ nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm --format=csv",
    HEAD,
    *(f"{index}, 59, 1755 MHz, 0x0000000000000004, Not Active" for index in range(5)),
    "5, 90, 1005 MHz, 0x0000000000000048, Active",
    *(f"{index}, 61, 1740 MHz, 0x0000000000000004, Not Active" for index in (6, 7)),
]


@pytest.mark.parametrize(
    "said",
    [
        "(k12 has the ranks 16-23 in order, k11 shows nothing)",
        "k10: ranks 0-7, k11: ranks 8-15, k12: ranks 16-23",
        "k12 = rank 16..23",
        "ranks 16 to 23 are on node k12",
    ],
)
def test_slow_device_of_a_host_whose_ranks_are_said(tmp_path: Path, said: str) -> None:
    assert show(first_of(say(tmp_path, *SLOW, said))) == ("N413", [21])


def test_slow_device_of_a_host_whose_ranks_are_not_said(tmp_path: Path) -> None:
    for said in ("k11 has the ranks 8-15", "k12 may have ranks 16-23", "k12 has 16-23 GB free"):
        assert show(first_of(say(tmp_path, *SLOW, said))) == ("N413", [])


def describe(name: str, *rows: str, reason: str = "OOMKilled", code: int = 137) -> list[str]:
    return [
        f"$ kubectl describe pod {name}",
        f"Name:             {name}",
        "Node:             pool-3-a81c/10.4.0.7",
        "Containers:",
        "  pytorch:",
        *(f"      {row}" for row in rows),
        "    State:          Terminated",
        f"      Reason:       {reason}",
        f"      Exit Code:    {code}",
    ]


@pytest.mark.parametrize(
    "row",
    ["RANK:              5", "torchrun --nnodes=8 --nproc_per_node=1 --node_rank=5 train.py"],
)
def test_pod_whose_description_tells_its_rank(tmp_path: Path, row: str) -> None:
    lost = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    assert show(first_of(say(tmp_path, lost, *describe("sft-worker-4", row)))) == ("C202", [5])

    for other in ("RANK_TOTAL:   5", "torchrun --nproc_per_node=8 --node_rank=5 train.py"):
        assert show(first_of(say(tmp_path, lost, *describe("sft-worker-4", other))))[1] != [5]


def stack(pid: int, *frames: str) -> list[str]:
    return [
        f"Process {pid}: python -u seg.py",
        "Python v3.10.14 (/opt/py/bin/python3.10)",
        "",
        f'Thread {pid} (idle): "MainThread"',
        *(f"    {frame}" for frame in frames),
    ]


WAITS = ("wait (torch/distributed/c10d.py:91)", "step (seg.py:91)", "<module> (seg.py:120)")
PROMPT = ("cmdloop (cmd.py:126)", "interaction (pdb.py:364)", "dice (seg.py:47)")
STACKS = [*stack(700, *WAITS), *stack(702, *WAITS), *stack(709, *PROMPT), *stack(711, *WAITS)]


@pytest.mark.parametrize(
    "said",
    [
        "(pids are rank 0..3 in that order)",
        "the stacks above are in rank order",
        "processes are sorted by rank",
        "those pids are ranks 0, 1, 2 and 3 respectively",
        "py-spy dump for the 4 procs (ranks in order 0..3)",
        "the dumps are of ranks 0 to 3 in order",
        "py-spy of all four, ranks top to bottom 0-3",
        "stacks, ranks listed in ascending order:",
    ],
)
def test_processes_that_are_said_to_be_in_the_order_of_ranks(tmp_path: Path, said: str) -> None:
    assert show(first_of(say(tmp_path, *STACKS, said))) == ("H101", [2])


@pytest.mark.parametrize(
    "said",
    [
        "(pids are rank 0..7 in that order)",
        "the stacks above are not in rank order",
        "in which rank do they stand? order them",
        "pids by rank would be nice",
        "py-spy dumps, ranks not in order 0..3",
        "py-spy dump for the procs (ranks in order 0..7)",
        "stacks of ranks in no order",
    ],
)
def test_order_that_is_not_said_names_no_rank(tmp_path: Path, said: str) -> None:
    assert show(first_of(say(tmp_path, *STACKS, said)))[1] == []


def test_other_order_of_ranks(tmp_path: Path) -> None:
    said = "pids are ranks 4-7 in that order"
    assert show(first_of(say(tmp_path, *STACKS, said))) == ("H101", [6])


def test_ranks_stand_in_the_order_in_which_they_are_said(tmp_path: Path) -> None:
    said = "pids are ranks 3, 2, 1, 0 in that order"
    assert show(first_of(say(tmp_path, *STACKS, said))) == ("H101", [1])


def test_sentences_are_read_as_they_are_meant() -> None:
    assert list_host_ranks("n1: ranks 0-7; n2: ranks 8-15") == (
        HostRanks("n1", 0, 7),
        HostRanks("n2", 8, 15),
    )
    assert list_host_ranks("jobs on b4 (ranks 4, 5, 6 and 7) stand, b1 (rank 0 and 1) not yet") == (
        HostRanks("b4", 4, 7),
        HostRanks("b1", 0, 1),
    )
    assert list_host_ranks("ranks 0, 1 run on b1, ranks 2 & 3 on host b2") == (
        HostRanks("b1", 0, 1),
        HostRanks("b2", 2, 3),
    )
    assert list_host_ranks("b1 has ranks 0, 2 and 4, and b2 (ranks 1, 3)") == ()
    assert list_host_ranks("in step-12 ranks 2 and 3 wait, not b2 (ranks 4 and 5)") == ()
    assert list_host_ranks("b2 (ranks 4 and 5-7), b3 (ranks 8, 9.5)") == ()
    assert list_host_ranks("v1.2 has ranks 3-900 and n1 has ranks 7-7") == ()
    assert find_order("collectives of a rank are in order, 3 processes") is None


LOST = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer"
KILLED = "mpi-worker-3    0/1     OOMKilled   0          52m   10.12.3.77"


@pytest.mark.parametrize(
    "said",
    ["(master is RANK 0, worker-N is RANK N+1)", "worker-0 = rank 1, worker-1 = rank 2"],
)
def test_worker_whose_rank_follows_from_its_number(tmp_path: Path, said: str) -> None:
    assert show(first_of(say(tmp_path, LOST, said, KILLED))) == ("C202", [4])


def test_worker_whose_rank_is_not_said_or_said_in_two_ways(tmp_path: Path) -> None:
    for said in ("worker-3 may be anything", "worker-0 = rank 1, worker-1 = rank 7"):
        assert show(first_of(say(tmp_path, LOST, said, KILLED)))[1] == []


HUNG = [
    "{0}",
    (
        "[Mon Jan 15 03:41:22 2024] Lustre: fs-OST0017-osc-ff9b: Connection to fs-OST0017 "
        "(at 10.41.0.27@o2ib) was lost; in progress operations using this service will wait"
    ),
    "[Mon Jan 15 03:43:50 2024] INFO: task python:88207 blocked for more than 122 seconds.",
]


@pytest.mark.parametrize(
    "command",
    [
        "$ srun --jobid 774012 --overlap -w gn03 bash -c 'dmesg -T | tail -14'",
        "$ srun -N1 --nodelist=gn03 dmesg -T",
        "$ kubectl debug node/gn03 -it -- chroot /host dmesg -T | tail",
        "$ ssh gn03 dmesg -T",
    ],
)
@pytest.mark.parametrize(
    "said", ["gn01..gn04 => rank 0..3", "gn[01-04] = ranks 0-3 (I didn't cancel)"]
)
def test_host_of_a_series_with_one_rank_each(tmp_path: Path, command: str, said: str) -> None:
    steps = [f"{rank}: epoch 13 start" for rank in (1, 0, 3, 2)]
    lines = [line.format(command) for line in HUNG]

    assert show(first_of(say(tmp_path, said, *steps, *lines))) == ("H116", [2])


def test_pod_whose_own_output_tells_its_rank(tmp_path: Path) -> None:
    unknown = (
        "[W520 09:12:04.118320091 socket.cpp:697] [c10d] The IPv4 network addresses of (a-master-0,"
        " 23456) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."
    )
    timed_out = (
        "[E520 09:42:04.310048125 socket.cpp:1023] [c10d] The client socket has timed out after "
        "1800000ms while trying to connect to (a-master-0, 23456)."
    )
    waits = "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients."
    lines = [
        "$ kubectl logs a-worker-1 -c pytorch | tail",
        "RANK=2 WORLD_SIZE=4",
        unknown,
        timed_out,
    ]
    lines += ["$ kubectl logs a-master-0 | tail", "RANK=0 WORLD_SIZE=4", waits]

    finding = first_of(say(tmp_path, *lines))
    assert (*show(finding), finding.culprits.nodes) == ("H121", [2], ["a-worker-1"])


def test_kernel_and_scheduler_that_tell_of_one_rank_agree(tmp_path: Path) -> None:
    lines = [
        (
            "12: torch.distributed.DistBackendError: NCCL error in: x.cpp:2251, remote "
            "process exited or there was a network error, NCCL version 2.20.5"
        ),
        "srun: error: cn0417: task 14: Out Of Memory",
        "srun: error: cn0417: tasks 8-13,15: Terminated",
        "cn0417 $ dmesg -T | grep -iE 'oom|killed process'",
        (
            "[Fri Jun  5 21:18:39 2026] Memory cgroup out of memory: Killed process 55071 (python) "
            "total-vm:318220144kB, anon-rss:247902208kB, file-rss:201344kB, shmem-rss:10368kB, UID"
        ),
    ]
    assert show(first_of(say(tmp_path, *lines))) == ("C202", [14])


def test_level_without_brackets_before_a_rank(tmp_path: Path) -> None:
    head = "(WorkerDict pid={0}, ip=10.9.0.4) 2024-10-29 11:07:44,812 ERROR [rank{1}] "
    lines = [
        head.format(41211, 4) + "Traceback (most recent call last):",
        '(WorkerDict pid=41211, ip=10.9.0.4)   File "/v/actor.py", line 61, in update',
        (
            "(WorkerDict pid=41211, ip=10.9.0.4) torch.OutOfMemoryError: CUDA out of memory. Tried "
            "to allocate 18.55 GiB. GPU 0 has a total capacity of 79.11 GiB of which 9.02 GiB is "
            "free"
        ),
        head.format(41207, 0) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more"
        " than 1EB memory.",
    ]
    assert show(first_of(say(tmp_path, *lines))) == ("C206", [4])


@pytest.mark.parametrize(
    "said",
    [
        "[2026-02-11T03:58:01+0000] rank 6: device 6 (AMD Instinct MI250X) pci 0000:de:00.0",
        "map: rank 6 -> 0000:de:00.0",
    ],
)
def test_device_of_a_rank_by_its_bus(tmp_path: Path, said: str) -> None:
    lines = [
        "HW Exception by GPU node-10 (Agent handle: 0x9157e20) reason :GPU Hang",
        "srun: error: nid005102: task 6: Aborted (core dumped)",
        "srun: error: nid005102: tasks 0-5,7: Terminated",
        "nid005102# dmesg --time-format iso | grep amdgpu",
        (
            "2026-02-11T04:31:06,770250+00:00 amdgpu 0000:de:00.0: amdgpu: socket: 3, die: 1 2 "
            "uncorrectable hardware errors detected in umc block"
        ),
    ]
    assert show(first_of(say(tmp_path, said, *lines))) == ("C208", [6])


@pytest.mark.parametrize("heading", ["== ring-{0} (RANK={0})", "### pod ring-{0}, rank {0}"])
def test_heading_with_a_pod_and_a_rank(tmp_path: Path, heading: str) -> None:
    lines = [
        line
        for rank in range(4)
        for line in (heading.format(rank), *stack(1, *(PROMPT if rank == 2 else WAITS)))
    ]
    assert show(first_of(say(tmp_path, *lines))) == ("H101", [2])


@pytest.mark.parametrize(
    "row", ["{0} rank={1} Tl", "pid {0} rank={1} S", "{0} OMPI_COMM_WORLD_RANK={1} R"]
)
def test_rows_of_processes_with_ranks(tmp_path: Path, row: str) -> None:
    rows = [row.format(pid, rank) for rank, pid in enumerate((700, 702, 709, 711))]
    assert show(first_of(say(tmp_path, *rows, *STACKS))) == ("H101", [2])


@pytest.mark.parametrize(
    "wait", ["rpc_wait_bit_killable", "nfs_wait_on_request", "cl_sync_io_wait"]
)
def test_process_that_ps_shows_in_a_silent_file_server(tmp_path: Path, wait: str) -> None:
    lines = [
        "root@gn05:~# ps -o pid,stat,wchan:32,cmd -p 51544",
        "    PID STAT WCHAN                            CMD",
        f"  51544 Dl   {wait}            /opt/env/bin/python -u pretrain.py",
        "root@gn05:~# dmesg | tail -1",
        "[804411.018836] nfs: server nas2 not responding, still trying",
    ]
    finding = first_of(say(tmp_path, *lines))
    assert (finding.code, finding.culprits.nodes) == ("H116", ["gn05"])


STATS = {
    "ps": "$ ps -eo pid,stat,wchan:28,cmd | grep python   # on gn05",
    "prompt": "me@login:~$ ps -o pid,stat,wchan,args -u me # node gn05",
    "aux": "ps -eo pid,stat,wchan:28,cmd | grep -v root    ## host gn05:",
}
OWNERS = {
    "list": "the jobs of gn05 (ranks 4 and 5) have not moved since noon, gn04 waits",
    "range": "gn05 has ranks 4-5",
    "on": "gn04 has no load, ranks 4, 5 are on gn05",
}


@pytest.mark.parametrize("command", STATS)
@pytest.mark.parametrize("said", OWNERS)
def test_processes_of_a_host_that_a_comment_names_are_its_ranks(
    tmp_path: Path, command: str, said: str
) -> None:
    rows = [
        f"  {pid} D    nfs_wait_on_request         python -u fit.py --root /nas" for pid in (71, 73)
    ]
    silent = "[4411.018836] nfs: server nas2 not responding, still trying"
    lines = [OWNERS[said], "", STATS[command], *rows, "", "$ dmesg | tail -1", silent]
    finding = first_of(say(tmp_path, *lines))

    assert (*show(finding), finding.culprits.nodes) == ("H116", [4, 5], ["gn05"])

    # As many as there are must be kept.
    finding = first_of(say(tmp_path, *lines[:4], *lines[5:]))
    assert (*show(finding), finding.culprits.nodes) == ("H116", [], ["gn05"])


@pytest.mark.parametrize(
    "comment", ["rank 5 of 8", "on all nodes", "since step-4", "gn05 was fine"]
)
def test_other_comments_name_no_host(tmp_path: Path, comment: str) -> None:
    rows = [f"  {pid} D    nfs_wait_on_request    python -u fit.py" for pid in (71, 73)]
    said = OWNERS["range"], f"$ ps -eo pid,stat,wchan:28,cmd  # {comment}"
    silent = "[4411.018836] nfs: server nas2 not responding, still trying"
    finding = first_of(say(tmp_path, *said, *rows, "", "$ dmesg | tail -1", silent))

    assert (*show(finding), finding.culprits.nodes) == ("H116", [], [])


@pytest.mark.parametrize("quote", ["> ", ">", ">> ", "> > "])
def test_quoted_output_is_read_as_it_was_written(tmp_path: Path, quote: str) -> None:
    lines = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/home/ana/ft.py", line 71, in <module>',
        "[rank2]:     trainer.train()",
        "[rank2]: KeyError: 'labels'",
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    ]
    finding = first_of(say(tmp_path, *(quote + line for line in lines)))
    assert (*show(finding), finding.where[0].line) == ("C204", [2], 71)


def test_rank_that_only_a_person_tells_is_not_certain(tmp_path: Path) -> None:
    by_number = first_of(say(tmp_path, LOST, "(worker-N is RANK N+1)", KILLED))
    assert (show(by_number), by_number.confidence) == (("C202", [4]), Confidence.LIKELY)

    waits = [WAIT.format(rank) for rank in (0, 1, 2)]
    by_device = first_of(say(tmp_path, *BROKEN, *QUERY, SAME[0], *waits))
    assert (show(by_device), by_device.confidence) == (("C208", [3]), Confidence.LIKELY)

    by_tool = first_of(say(tmp_path, LOST, *describe("sft-worker-4", "RANK:              5")))
    assert (show(by_tool), by_tool.confidence) == (("C202", [5]), Confidence.CERTAIN)
