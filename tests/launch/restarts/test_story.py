"""The whole life of a job on three nodes: hosts by name, each with a supervisor of its own.

A node is a UTS namespace: it has a host name and shares the rest of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.disks import small_disk
from tests.launch.running import LEAVE, LONG, PATIENCE_S, WHYSTUCK, clean_environment
from tests.ports import find_port

pytestmark = [
    LONG,
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="a namespace of host names needs root"),
]

TRAIN = f"""
import os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(1))
    if step == 3 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
{LEAVE}
"""
POLICY = """
checks = ["disk"]
[disk]
test_mb = 1
min_free_mb = 0
min_free_share = 0.0
min_read_mb_per_s = 0
min_write_mb_per_s = 0
max_sync_ms = 1e9
min_files_per_s = 0
"""


def start_node(folder: Path, name: str, port: int, policy: Path) -> subprocess.Popen[bytes]:
    """Start the job on a node, as its user would on each."""
    # Static: with the rendezvous of c10d, a rank is on another node the next time.
    job = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1",
           "--node-rank", "0" if name == "n1" else "1",
           "--master-addr", "localhost", "--master-port", str(port), "train.py"]  # fmt: skip
    run = [*WHYSTUCK, "run", "--check", "--check-policy", str(policy), "--max-restarts", "5",
           "--evidence", "ev", "--", *job]  # fmt: skip
    enter = f'echo {name} > /proc/sys/kernel/hostname && exec "$@"'
    return subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", enter, "-", *run],
        cwd=folder, env=clean_environment(HOSTNAME=name), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_fault_log_tells_the_life_of_a_job_in_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    port = find_port()
    with small_disk("size=64k", is_full=True) as disk:
        good.write_text(POLICY)
        bad.write_text(f'{POLICY}paths = ["{disk}"]\n')
        # GIVEN node n2 with a bad disk
        second = start_node(tmp_path, "n2", port, bad)
        _, said = second.communicate(timeout=PATIENCE_S)
    # THEN its check keeps the job from it, and others can read which node that is
    assert second.returncode == 120, said
    assert (tmp_path / "ev/exclude/slurm.txt").read_text() == "--exclude=n2\n"

    # WHEN the job runs on the others, and a rank of it is killed at each start
    nodes = {name: start_node(tmp_path, name, port, good) for name in ("n1", "n3")}
    ends = {
        name: process.communicate(timeout=PATIENCE_S)[1].decode() for name, process in nodes.items()
    }

    # THEN it is started once more, and ended with the reason on the node of that rank
    assert {process.returncode for process in nodes.values()} == {1}, ends
    reason = "not started again: the same cause came twice without progress: C201"
    assert reason in ends["n3"], ends
    events = [json.loads(line) for line in (tmp_path / "ev/fault.jsonl").read_text().splitlines()]
    told = [
        (event["event"], event["details"].get("code") or event["details"].get("restart"))
        for event in events
        if event["node"] == "n3" and event["event"] not in ("note", "check")
    ]
    assert told == [
        ("start", None),
        ("rank-end", None),
        ("finding", "C201"),
        ("exit", 1),
        ("restart", 1),
        ("start", None),
        ("rank-end", None),
        ("finding", "C201"),
        ("exit", 1),
        ("restart", None),
    ]
    first = [event["text"] for event in events if event["node"] == "n2"]
    assert first[-1] == "Round 0 ends with code 120."
