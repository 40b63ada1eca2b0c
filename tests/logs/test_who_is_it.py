"""Who a finding is about, where one part of a paste says what happened and another one to whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT, WAITS

from whystuck.evidence.finding import Finding

Told = tuple[str, list[int], list[str]]


def tell(folder: Path, *lines: str) -> Told:
    return show(first_of(say(folder, *lines)))


def show(finding: Finding) -> Told:
    return finding.code, finding.culprits.ranks, finding.culprits.nodes


def blamed(folder: Path, *lines: str) -> set[int]:
    return {rank for one in say(folder, *lines).findings for rank in one.culprits.ranks}


# --------------------------------------------------------------- the runtime that ends its process

GONE = [
    (
        "E0627 03:31:41.320000 22618 torch/distributed/elastic/multiprocessing/api.py:826] failed "
        "(exitcode: {0}) local_rank: 3 (pid: 22703) of binary: /opt/conda/bin/python"
    ),
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2024-06-27_03:31:40",
    "  host      : mi-02",
    "  rank      : 11 (local_rank: 3)",
    "  exitcode  : {0} (pid: 22703)",
    "  error_file: <N/A>",
    "  traceback : Signal 6 (SIGABRT) received by PID 22703",
]
FAULTS = [
    "HW Exception by GPU node-3 (Agent handle: 0x55d0c1e9a0b0) reason :GPU Hang",
    "Memory access fault by GPU node-2 (Agent handle: 0x7f1) on address 0x7f2. Reason: Unknown.",
    (
        ":0:rocdevice.cpp :2984: 111 us: 22703: [tid:0x7] Callback: Queue 0x7f aborting with "
        "error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION"
    ),
]


def end(code: int) -> list[str]:
    return [line.format(code) for line in GONE]


@pytest.mark.parametrize("fault", FAULTS[:2])
@pytest.mark.parametrize("before", [True, False])
def test_fault_that_nobody_signed_is_of_the_rank_that_aborted(
    tmp_path: Path, fault: str, *, before: bool
) -> None:
    lines = [fault, *end(-6)] if before else [*end(-6), fault]

    assert tell(tmp_path, "rank 0 | iter 212", *lines) == ("C212", [11], ["mi-02"])


def test_fault_beside_another_end_is_of_nobody(tmp_path: Path) -> None:
    table = "\n".join(end(-6)).replace("rank      : 11", "rank      : 10").replace("22703", "22702")

    # Two ranks aborted; one ended with a code of its own; one was killed
    assert not blamed(tmp_path, FAULTS[0], *end(-6), table)
    assert 11 not in blamed(tmp_path, FAULTS[0], *end(1)) | blamed(tmp_path, FAULTS[0], *end(-15))


# ------------------------------------------------------------------------- workers that were killed

LOST = "[rank14]: RuntimeError: DataLoader worker (pid {0}) is killed by signal: Killed. "
KILLS = [
    (
        "[Tue Nov 12 08:31:41 2024] Memory cgroup out of memory: Killed process 2210913 ({0}) "
        "total-vm:61203312kB, anon-rss:48112904kB, file-rss:80212kB, shmem-rss:1180kB, UID:0"
    ),
    "[ 9121.331000] Out of memory: Killed process 2210913 ({0}) total-vm:6kB, anon-rss:481129kB",
    (
        "Nov 12 08:31:41 n7 kernel: Out of memory: Killed process 2210913, UID 0, ({0}) "
        "total-vm:61203312kB, anon-rss:48112904kB, file-rss:80212kB"
    ),
    (
        "[9121.331] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods,"
        "task={0},pid=2210913,uid=0"
    ),
]


@pytest.mark.parametrize("kill", KILLS)
def test_worker_that_the_kernel_killed_is_of_the_rank_that_lost_one(
    tmp_path: Path, kill: str
) -> None:
    finding = first_of(say(tmp_path, LOST.format(913), *WAITS, kill.format("pt_data_worker")))

    assert (finding.code, finding.culprits.ranks) == ("C202", [14])


@pytest.mark.parametrize("kill", KILLS)
def test_killed_process_is_of_no_rank_where_two_lost_one_or_none(tmp_path: Path, kill: str) -> None:
    other = LOST.format(71).replace("rank14", "rank9")

    worker = kill.format("pt_data_worker")
    for text in (
        [LOST.format(913), other, worker],
        [*WAITS, WAIT.format(0), worker],
        [LOST.format(913), *WAITS, kill.format("blender")],
    ):
        told = say(tmp_path, *text).findings
        assert not [one for one in told if "loader worker of rank" in one.summary]


RAY = [
    "(TrainWorker pid=20111, ip=10.0.3.4) [rank 4] step 810 loss 1.51",
    "(TrainWorker pid=20114, ip=10.0.3.4) [rank 6] replay cache: 41812 items",
    "(TrainWorker pid=20114, ip=10.0.3.3) [rank 1] replay cache: 1024 items",
]
LOW = [
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    (
        "Memory on the node (IP: {0}, ID: 7d0b1a52f9) where the task (actor ID: 0b1f2dd9e0c74c, "
        "name=TrainWorker.__init__, pid=20114, memory used=91.42GB) was running was 118.45GB / "
        "124.00GB (0.955242), which exceeds the memory usage threshold of 0.95."
    ),
]
RAISED = [
    "Traceback (most recent call last):",
    '  File "/opt/ray/_private/worker.py", line 2753, in get',
    "    values = worker.get_objects(refs)",
]


@pytest.mark.parametrize(("host", "rank"), [("10.0.3.4", 6), ("10.0.3.3", 1)])
@pytest.mark.parametrize("raised", [True, False])
def test_worker_that_ray_ended_is_led_to_its_rank(
    tmp_path: Path, host: str, rank: int, *, raised: bool
) -> None:
    low = [line.format(host) for line in LOW]
    text = say(tmp_path, *RAY, *(RAISED if raised else []), *low)

    assert show(first_of(text)) == ("C202", [rank], [host])


def test_worker_of_a_host_that_nothing_tells_of_is_no_rank(tmp_path: Path) -> None:
    low = [line.format("10.0.3.9") for line in LOW]

    assert tell(tmp_path, *RAY, *RAISED, *low) == ("C202", [], ["10.0.3.9"])


# --------------------------------------------------------------- a device, as two tell of the same

ECC = "[rank22]: RuntimeError: CUDA error: {0}"
XIDS = [
    (
        "Apr 18 05:20:33 gpu-m3 kernel: NVRM: Xid (PCI:0000:c1:00): 94, pid=90211, name=python, "
        "Contained: SM (0x1). RST: No, D-RST: No"
    ),
    (
        "Apr 18 05:20:33 gpu-m3 kernel: NVRM: Xid (PCI:0000:c1:00): 48, pid='<unknown>', "
        "name=<unknown>, DBE (double bit error) ECC Error"
    ),
    "Apr 18 05:20:33 gpu-m3 kernel: NVRM: Xid (PCI:0000:c1:00): 95, pid=90211, Uncontained: FBHUB",
    (
        "Apr 18 05:20:33 gpu-m3 kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=90211, GPU has fallen "
        "off the bus."
    ),
]


@pytest.mark.parametrize("xid", XIDS)
@pytest.mark.parametrize("is_below", [True, False])
def test_device_error_of_a_rank_and_of_its_kernel_is_one(
    tmp_path: Path, xid: str, *, is_below: bool
) -> None:
    ecc = ECC.format("uncorrectable ECC error encountered")
    report = say(tmp_path, *([ecc, *WAITS, xid] if is_below else [xid, ecc, *WAITS]))

    assert [show(one) for one in report.findings] == [("C208", [22], ["gpu-m3"])]


def test_device_errors_of_two_ranks_are_two(tmp_path: Path) -> None:
    ecc = ECC.format("uncorrectable ECC error encountered")

    assert not blamed(tmp_path, ecc, ecc.replace("22", "3"), XIDS[0])


# ---------------------------------------------------------------------------- children of a process

PS = [
    "$ ps -o pid,ppid,stat,wchan:24,etime,cmd --ppid 4711",
    "    PID    PPID STAT WCHAN                        ELAPSED CMD",
    "  52811    {0} D    {1}          41:55 python -u train.py",
    "  52812    {0} S    futex_wait_queue               41:55 python -u train.py",
    "  52813    {0} D    {1}          41:55 python -u train.py",
    "  52814    {0} D    {1}          41:55 python -u train.py",
]
OWNERS = [
    "rank 5 is pid 4711",
    "(W pid=4711, ip=10.0.3.4) [rank 5] step 810",
    "$ py-spy dump -p 4711    # rank 5",
    "[rank5]:V0612 03:20:11.120000 4711 site-packages/torch/_dynamo/guards.py:3006] [3/5] new",
]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("call", ["rpc_wait_bit_killable", "cl_sync_io_wait", "ceph_wait_caps"])
def test_children_that_a_file_system_keeps_are_those_of_their_rank(
    tmp_path: Path, owner: str, call: str
) -> None:
    rows = [line.format(4711, call) for line in PS]

    assert tell(tmp_path, owner, *WAITS, *rows)[:2] == ("H116", [5])


@pytest.mark.parametrize(
    "rows",
    [
        # of a launcher, of nobody, and that only wait for work
        [line.format(4700, "rpc_wait_bit_killable") for line in PS],
        [line.format(1, "rpc_wait_bit_killable") for line in PS],
        [line.format(4711, "do_wait") for line in PS],
    ],
)
def test_children_of_others_blame_no_rank(tmp_path: Path, rows: list[str]) -> None:
    report = say(tmp_path, OWNERS[0], *WAITS, *rows)

    assert not [one for one in report.findings if one.code == "H116"]


# -------------------------------------------------------------- a lock and the GIL, as py-spy shows

NATIVE = """\
Process 4711: python -u -m trainer.main
Python v3.11.9 (/usr/local/bin/python3.11)

Thread 4711 ({0}): "MainThread"
    pthread_cond_timedwait (libc.so.6)
    take_gil (python3.11)
    PyEval_RestoreThread (python3.11)
    THPEngine_run_backward (torch/lib/libtorch_python.so)
    backward (torch/_tensor.py:581)
    train_step (trainer/loop.py:311)
Thread 4799 ({1}): "prefetch-0"
    {2} (libc.so.6)
    Cache::lookup ({3})
    encode_batch ({3})
    _pack (trainer/data.py:77)
Thread 4800 (idle): "prefetch-1"
    pthread_cond_timedwait (libc.so.6)
    take_gil (python3.11)
    PyGILState_Ensure (python3.11)
    Cache::on_miss ({3})
    _pack (trainer/data.py:77)
"""
LIBRARY = "fasttok.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("call", "library"),
    [
        ("__lll_lock_wait", LIBRARY),
        ("pthread_mutex_lock", "_myext.so"),
        ("futex_wait", "librocksdb.so.8"),
        ("pthread_cond_wait@@GLIBC_2.3.2", LIBRARY),
    ],
)
@pytest.mark.parametrize("owner", OWNERS[:2])
def test_owner_of_the_gil_in_a_lock_of_an_extension_is_named(
    tmp_path: Path, call: str, library: str, owner: str
) -> None:
    text = NATIVE.format("idle", "active+gil", call, library)

    assert tell(tmp_path, owner, *WAITS, "", *text.splitlines())[:2] == ("H114", [5])


@pytest.mark.parametrize(
    "text",
    [
        # nobody owns it, its owner computes, and its owner is in torch, which gives it back
        NATIVE.format("idle", "active", "__lll_lock_wait", LIBRARY),
        NATIVE.format("idle", "active+gil", "Cache::hash", LIBRARY),
        NATIVE.format("idle", "active+gil", "__lll_lock_wait", "torch/lib/libtorch_cpu.so"),
    ],
)
def test_gil_that_is_not_kept_in_a_lock_is_another_story(tmp_path: Path, text: str) -> None:
    report = say(tmp_path, OWNERS[0], *WAITS, "", *text.splitlines())

    assert not [one for one in report.findings if one.code == "H114"]
