"""Which host a paste of several of them tells of: of its card, its memory, its files, its start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

NCCL = "{0}:8871:9551 [5] transport/net_ib.cc:2068 NCCL WARN NET/IB : mlx5_6:1 {1}"
LOST = (
    "{0}:8871:9551 [5] transport/net_ib.cc:2101 NCCL WARN NET/IB: Got completion from peer "
    "10.66.2.{1}<41802> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_6"
)
DOWN = [
    "n4 # dmesg -T | grep mlx5",
    "[Fri Mar  6 03:58:15 2026] mlx5_core 0000:ba:00.0 ens6np0: Link down",
    "[Fri Mar  6 03:59:52 2026] mlx5_core 0000:ba:00.0 ens6np0: Link up",
]


@pytest.mark.parametrize(
    "note", ["GID table change", "client reregistration", "LID change", "port active", "SM change"]
)
def test_card_that_tells_of_a_change_is_well(tmp_path: Path, note: str) -> None:
    lines = [
        NCCL.format("n1", f"Got async event : {note}"),
        NCCL.format("n4", "Got async event : port error"),
        LOST.format("n4", 21),
        LOST.format("n1", 24),
    ]

    for end, code in (([], "C208"), (DOWN, "N408")):
        finding = first_of(say(tmp_path, *lines, *end))
        assert (finding.code, finding.culprits.nodes) == (code, ["n4"])

    report = say(tmp_path, lines[0], *lines[2:])
    assert not [item for item in report.findings if "n1" in item.culprits.nodes]


JOIN = (
    "{0}: I0306 10:00:05.002000 7012 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py"
    ":1037] The node '{0}_7012_0' {1} of the rendezvous 'g4'."
)
IPV6 = (
    "{0}: [W306 10:00:09.414003118 socket.cpp:752] [c10d] The IPv6 network addresses of (b01, "
    "29400) cannot be retrieved (gai error: -2 - Name or service not known)."
)
GIVEN_UP = "{0}: torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
SETUP = ["b03: ++ source /shared/env/bin/activate", "b03: ++ python -c 'import torch'"]


def test_host_that_never_came_to_the_rendezvous_is_named(tmp_path: Path) -> None:
    came = ["b01", "b02", "b04"]
    joins = [JOIN.format(host, "attempts to join the next round") for host in came[:2]]
    joins.append(JOIN.format("b04", "has joined round 0"))
    warnings = [IPV6.format(host) for host in came[1:]]
    ends = [GIVEN_UP.format(host) for host in came]

    finding = first_of(say(tmp_path, *joins, *warnings, *SETUP, *ends))
    assert (finding.code, finding.culprits.nodes) == ("H121", ["b03"])

    finding = first_of(say(tmp_path, *joins, *warnings, *ends))
    assert (finding.code, finding.culprits.nodes) == ("H121", [])
    assert "resolved" not in finding.summary


_ELASTIC = "0306 02:1{0} 301 torch/distributed/elastic/{1}.py:874] {2}"
RESTART = [
    "E"
    + _ELASTIC.format("1:44.801000", "multiprocessing/api", "failed (exitcode: -6) ")
    + "local_rank: 2 (pid: 378) of binary: /usr/bin/python3",
    "I"
    + _ELASTIC.format("1:44.803000", "agent/server/api", "[default] Worker group FAILED. ")
    + "3/3 attempts left; will restart worker group",
    "I"
    + _ELASTIC.format("2:16.440000", "agent/server/api", "[default] Rendezvous complete for ")
    + "workers. Result:",
    "  restart_count=1",
    *[f"[02:{minute}:00] step {6000 + minute} loss 2.0{minute}" for minute in range(13, 50)],
    "$ dmesg -T | tail -2     # a07",
]
XID = (
    "[{0} 2026] NVRM: Xid (PCI:0000:a1:00): 31, pid=88214, name=python3, Ch 00000008, intr "
    "00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_2 faulted @ 0x7f20_11000000."
)


def test_what_a_driver_wrote_weeks_before_the_job_is_past(tmp_path: Path) -> None:
    report = say(tmp_path, *RESTART, XID.format("Mon Feb  2 11:02:13"))

    assert report.findings == []


STALE = "{0}: [rank{1}]: OSError: [Errno 116] Stale file handle: '/nfs/ds/shards/train-{1}.tar'"
CLOSED = "{0}: [rank{1}]: socketProgress: Connection closed by remote peer {2}<50233>"


def test_host_that_alone_lost_its_files_is_named(tmp_path: Path) -> None:
    others = [CLOSED.format("k4", 0, "k6"), CLOSED.format("k5", 11, "k6")]
    here = [STALE.format("k6", rank) for rank in (17, 18, 22)]

    finding = first_of(say(tmp_path, *here, *others))
    assert (finding.code, finding.culprits.nodes) == ("C204", ["k6"])

    report = say(tmp_path, *here, STALE.format("k5", 11), *others)
    assert not {node for one in report.findings for node in one.culprits.nodes}


EVICTED = (
    "s-13: [Fri Mar  6 20:16:31 2026] LustreError: 167-0: scratch2-OST0011-osc-ffff9c3: This client"
    " was evicted by scratch2-OST0011; in progress operations using this service will fail."
)


def test_host_that_was_evicted_is_named_for_the_ranks_of_a_failed_save(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "s-15: [rank56]: RuntimeError: [../third_party/gloo/transport/tcp/unbound_buffer.cc:81] "
        "Timed out waiting 1800000ms for recv operation to complete",
        "s-08: [rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([40, 41, 42, 43])",
        "s-08: [rank0]: Traceback (most recent call last): (RANK 40)",
        "s-08: [rank0]: OSError: [Errno 5] Input/output error",
        "s-09: [rank9]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
        "Connection closed by peer [10.11.0.8]:40188",
        EVICTED,
    )

    assert first_of(report).culprits.nodes == ["s-13"]


SRUN = [
    "5: Loading checkpoint shards: 100%|####| 30/30 [02:11<00:00,  4.37s/it]",
    "6: Loading checkpoint shards:  87%|###| 26/30 [01:58<00:18,  4.60s/it]",
    "0: Loading checkpoint shards: 100%|####| 30/30 [01:44<00:00,  3.48s/it]",
    "slurmstepd: error: Detected 2 oom_kill events in StepId=91.0.",
]


@pytest.mark.parametrize(("tasks", "ranks"), [("tasks 6-7", []), ("task 6", [6])])
def test_host_is_named_whose_memory_several_tasks_used_up(
    tmp_path: Path, tasks: str, ranks: list[int]
) -> None:
    ends = [f"srun: error: g2: {tasks}: Out Of Memory", "srun: error: g1: tasks 0-3: Exited with 1"]

    finding = first_of(say(tmp_path, *SRUN, *ends))

    assert (finding.code, finding.culprits.nodes) == ("C202", ["g2"])
    assert finding.culprits.ranks == ranks


def test_srun_alone_tells_whose_memory_was_used_up(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *SRUN[:3], "srun: error: g2: tasks 6-7: Out Of Memory"))

    assert (finding.code, finding.culprits.nodes) == ("C202", ["g2"])


def test_abort_of_a_watchdog_is_no_crash_beside_what_was_before(tmp_path: Path) -> None:
    finding = first_of(
        say(
            tmp_path,
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  [PG ID 1 PG GUID 5 Rank 4] Process group watchdog thread terminated with "
            "exception: NCCL error: remote process exited or there was a network error",
            "Fatal Python error: Aborted",
            "",
            "Thread 0x00007f1f2bfff640 (most recent call first):",
            '  File "/usr/lib/python3.11/threading.py", line 331 in wait',
            '  File "/opt/pt/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run',
            "[rank11]: Traceback (most recent call last):",
            '[rank11]:   File "/opt/pt/app/loss.py", line 22, in forward',
            "[rank11]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 11.05 GiB. ",
        )
    )

    assert (finding.code, finding.culprits.ranks) == ("C206", [11])


def test_full_shared_memory_and_the_bus_error_of_a_worker_are_one(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "localhost: [rank3]: RuntimeError: DataLoader worker (pid 18) is killed by signal: Bus "
        "error. It is possible that dataloader's workers are out of shared memory.",
        "[2026-03-06 07:15:47,780] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'a.py',"
        " '--local_rank=3'] exits with return code = -7",
    )

    assert [item.code for item in report.findings] == ["C210"]
