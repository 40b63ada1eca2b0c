"""What whystuck does on the file system of the evidence while a job runs as it should.

On a shared file system, each operation on names and attributes asks the server, once for each
process: of thousands of ranks, none may make any.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, torchrun

JOB = f"""
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until_s = time.monotonic() + 240
while True:
    over = torch.tensor([float(os.path.exists(sys.argv[1]) or time.monotonic() > until_s)])
    dist.broadcast(over, 0)
    if over.item():
        break
    model(torch.ones(2, 8)).sum().backward()
    for one in model.parameters():
        dist.all_reduce(one.grad)
    optimizer.step()
    print("a line", flush=True)
    time.sleep(0.02)
{END}
"""
_SECONDS = 12.0
_CALL = re.compile(r"^(\d+) +(\w+)\(")
# Bytes go to a file that is open: no name is looked up, and no attribute asked for.
_DATA = {"write", "pwrite64", "writev", "read", "pread64", "poll", "ppoll", "close"}


def _wait(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def _find(front: int) -> tuple[list[int], list[int]]:
    """Return the pids of the ranks, and of all other processes of whystuck."""
    found = psutil.Process(front).children(recursive=True)
    words = {one.pid: one.cmdline() for one in found}
    ranks = [
        pid
        for pid, said in words.items()
        if any(one.endswith("job.py") for one in said) and "torchrun" not in str(said)
    ]
    own = [pid for pid, said in words.items() if "whystuck" in said or "relay.py" in str(said)]
    return ranks, [front, *own]


def _trace(pids: list[int], out: Path) -> None:
    """Note for some seconds all system calls of processes that name a file or a descriptor."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    each = [word for pid in pids for word in ("-p", str(pid))]
    calls = "trace=%file,%desc"
    with subprocess.Popen(
        [strace, "-f", "-y", "-s", "4096", "-e", calls, "-o", str(out), *each],
        stderr=subprocess.PIPE,
        text=True,
    ) as tracer:
        time.sleep(_SECONDS)
        tracer.send_signal(signal.SIGINT)
        assert tracer.stderr is not None
        said = tracer.stderr.read()
    if "Operation not permitted" in said:
        pytest.skip("processes may not be traced here (ptrace)")


def _count(out: Path, evidence: Path) -> Counter[tuple[int, str]]:
    """Return how often each thread made each call on a path or descriptor of the evidence."""
    found: Counter[tuple[int, str]] = Counter()
    for line in out.read_text(errors="replace").splitlines():
        call = _CALL.match(line)
        if call and str(evidence) in line:
            found[int(call[1]), call[2]] += 1
    return found


@pytest.mark.slow
def test_no_rank_touches_the_evidence_while_all_is_well(tmp_path: Path) -> None:
    script, evidence, over = tmp_path / "job.py", tmp_path / "shared", tmp_path / "over"
    script.write_text(JOB)
    command = [*WHYSTUCK, "run", "--evidence", str(evidence), "--"]
    with subprocess.Popen(
        [*command, *torchrun(2, script, str(over))],
        env=clean_environment(),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            _wait(lambda: len(list(evidence.glob("rounds/0/*/rank-*/log.txt"))) == 2)
            time.sleep(5)  # what is done once, at the start, is over
            ranks, own = _find(job.pid)
            threads = {
                int(one.name) for pid in ranks for one in Path(f"/proc/{pid}/task").iterdir()
            }
            _trace([*ranks, *own], tmp_path / "calls")
        finally:
            over.touch()
            job.wait(120)
    assert len(ranks) == 2
    found = _count(tmp_path / "calls", evidence)
    assert found, "the lines of the ranks were written to their logs"
    seen = {int(line.split()[0]) for line in (tmp_path / "calls").read_text().splitlines()}
    assert seen >= set(ranks), "what ranks do was seen"
    assert not {key: count for key, count in found.items() if key[0] in threads}
    metadata = {key: count for key, count in found.items() if key[1] not in _DATA}
    # Once a minute, whatever the number of ranks.
    assert sum(metadata.values()) <= 2, metadata
