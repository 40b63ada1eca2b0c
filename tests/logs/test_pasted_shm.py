"""Room in /dev/shm that somebody printed beside processes that ended for want of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WORKER = (
    "[rank1]: RuntimeError: DataLoader worker (pid 331) is killed by signal: Bus error. It is "
    "possible that dataloader's workers are out of shared memory. Please try to raise your shared "
    "memory limit."
)
FELT = {
    "torch": [
        (
            "[rank0]: ERROR: Unexpected bus error encountered in worker. This might be caused by "
            "insufficient shared memory (shm)."
        ),
        WORKER,
    ],
    "worker": [WORKER],
    "NCCL": [
        (
            "n7:202:235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend "
            "/dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)"
        )
    ],
    "fault": ["Fatal Python error: Bus error", "", "Current thread 0x00007f (most recent call):"],
    "launcher": [
        (
            "E0302 12:20:57.102000 88 torch/distributed/elastic/multiprocessing/api.py:869] failed "
            "(exitcode: -7) local_rank: 1 (pid: 96) of binary: /opt/conda/bin/python3.11"
        )
    ],
    "file": [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/w/train.py", line 30, in <module>',
        "[rank2]:     q.put(batch)",
        '[rank2]:   File "/usr/lib/python3.11/multiprocessing/heap.py", line 81, in __init__',
        "[rank2]:     os.ftruncate(self.fd, size)",
        "[rank2]: OSError: [Errno 28] No space left on device",
    ],
}
SHOWN = {
    "df -h": [
        "root@6f0c1c2a83b1:/w# df -h /dev/shm /tmp",
        "Filesystem      Size  Used Avail Use% Mounted on",
        "shm              64M   64M     0 100% /dev/shm",
        "overlay         1.8T  702G  1.1T  40% /",
    ],
    "emptied": ["shm              64M     0   64M   0% /dev/shm"],
    "df": [
        "$ df /dev/shm",
        "Filesystem     1K-blocks  Used Available Use% Mounted on",
        "shm                65536     0     65536   0% /dev/shm",
    ],
    "df -m": [
        "$ df -m /dev/shm",
        "Filesystem     1M-blocks  Used Available Use% Mounted on",
        "tmpfs               64    10      54    16% /dev/shm",
    ],
    "df -hT": ["tmpfs          tmpfs     16G   16G  4.0K 100% /dev/shm"],
    "df of a pod": [
        "$ kubectl exec seg-worker-1 -- df -h | grep shm",
        "shm                64.0M     63.5M      0.5M  99% /dev/shm",
    ],
    "mount": ["shm on /dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=65536k)"],
    "proc": ["shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0"],
    "inspect": ['            "ShmSize": 67108864,'],
    "started": ["$ docker run --gpus all --shm-size=128m -it me/train:1 bash"],
}
AMPLE = {
    "emptied": ["shm              64G     0   64G   0% /dev/shm"],
    "blocks": [
        "$ df /dev/shm",
        "Filesystem     1K-blocks  Used Available Use% Mounted on",
        "tmpfs          263741520    28 263741492   1% /dev/shm",
    ],
    "mount": ["tmpfs on /dev/shm type tmpfs (rw,nosuid,nodev,size=131872784k,nr_inodes=1048576)"],
    "started": ["$ docker run --gpus all --shm-size=64g -it me/train:1 bash"],
    "other mount": ["tmpfs            64M   64M     0 100% /run/user/1000"],
    "advice": ["did you try --shm-size=256m or a bigger /dev/shm ?"],
    "nothing": [],
}


@pytest.mark.parametrize("sign", FELT)
@pytest.mark.parametrize("tool", SHOWN)
def test_little_room_that_was_felt_is_told(tmp_path: Path, tool: str, sign: str) -> None:
    found = first_of(say(tmp_path, *FELT[sign], *SHOWN[tool]))

    assert (found.code, found.culprits.ranks) == ("N403", [])
    assert "MiB" in found.summary


@pytest.mark.parametrize("sign", ["torch", "worker", "NCCL"])
@pytest.mark.parametrize("tool", AMPLE)
def test_without_little_room_it_is_a_mistake_in_the_environment(
    tmp_path: Path, tool: str, sign: str
) -> None:
    assert first_of(say(tmp_path, *FELT[sign], *AMPLE[tool])).code == "C210"


@pytest.mark.parametrize("tool", SHOWN)
def test_little_room_that_nobody_felt_breaks_nothing(tmp_path: Path, tool: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 1"]
    report = say(tmp_path, *SHOWN[tool], *(f"[rank3]: {line}" for line in raised))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C204"]


def test_full_disk_is_no_shared_memory(tmp_path: Path) -> None:
    raised = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/w/train.py", line 30, in save',
        "[rank2]:     f.write(data)",
        "[rank2]: OSError: [Errno 28] No space left on device",
    ]

    assert first_of(say(tmp_path, *raised, *SHOWN["emptied"])).code != "N403"


def test_memory_that_failed_is_told_before_it(tmp_path: Path) -> None:
    kernel = (
        "[Mon Mar  2 12:20:50 2026] Memory failure: 0x1c8f0a2: Sending SIGBUS to python:96 due to "
        "hardware memory corruption"
    )

    assert first_of(say(tmp_path, kernel, *FELT["launcher"], *SHOWN["emptied"])).code == "C208"
