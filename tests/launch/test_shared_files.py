"""What whystuck does on the file system of the evidence, which thousands of ranks may share.

There, each operation on names and attributes asks the server. While a job runs as it should no rank
makes any, and an incident costs a node some, whatever the number of its ranks. A server that is
slow, or hangs, keeps no job waiting.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck
from tests.launch.simulated import SimulatedJob, simulated_job, wait_for
from tests.ports import find_port
from tests.shared_disk import SharedDisk, shared_disk

from whystuck.evidence.archive import SUFFIX
from whystuck.guarded.evidence_files import list_archive

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


def _find(fronts: list[int]) -> tuple[list[int], list[int]]:
    """Return the pids of the ranks, and of all other processes of whystuck."""
    found = [one for front in fronts for one in psutil.Process(front).children(recursive=True)]
    words = {one.pid: one.cmdline() for one in found}
    ranks = [
        pid
        for pid, said in words.items()
        if any(one.endswith("job.py") for one in said) and "torchrun" not in str(said)
    ]
    own = [pid for pid, said in words.items() if "whystuck" in said or "relay.py" in str(said)]
    return ranks, [*fronts, *own]


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


def _commands(nodes: int, script: Path, over: Path) -> list[list[str]]:
    """Return the command of each node of a job of two ranks."""
    shape = ["--nnodes", str(nodes), "--nproc-per-node", str(2 // nodes)]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(find_port()), "--rdzv-id", "shared"]
    return [
        ["torchrun", *shape, "--node-rank", str(node), *place, str(script), str(over)]
        for node in range(nodes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_rank_touches_the_evidence_while_all_is_well(tmp_path: Path, nodes: int) -> None:
    script, evidence, over = tmp_path / "job.py", tmp_path / "shared", tmp_path / "over"
    script.write_text(JOB)
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                subprocess.Popen(
                    [*WHYSTUCK, "run", "--evidence", str(evidence), "--", *command],
                    env=clean_environment(WHYSTUCK_EVIDENCE_FORM="archive"),
                    cwd=tmp_path,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            for command in _commands(nodes, script, over)
        ]
        try:
            _wait(lambda: len(list(evidence.glob("rounds/*/*/rank-*/log.txt"))) == 2)
            time.sleep(5)  # what is done once, at the start, is over
            ranks, own = _find([job.pid for job in jobs])
            threads = {
                int(one.name) for pid in ranks for one in Path(f"/proc/{pid}/task").iterdir()
            }
            _trace([*ranks, *own], tmp_path / "calls")
        finally:
            over.touch()
            codes = [job.wait(120) for job in jobs]
    assert codes == [0] * nodes
    assert len(ranks) == 2
    found = _count(tmp_path / "calls", evidence)
    assert found, "the lines of the ranks were written to their logs"
    seen = {int(line.split()[0]) for line in (tmp_path / "calls").read_text().splitlines()}
    assert seen >= set(ranks), "what ranks do was seen"
    assert not {key: count for key, count in found.items() if key[0] in threads}
    metadata = {key: count for key, count in found.items() if key[1] not in _DATA}
    # Once a minute for each node, whatever the number of ranks.
    assert sum(metadata.values()) <= 2 * nodes, metadata


def _wait_for_steps(job: SimulatedJob, evidence: Path) -> None:
    """Wait until a job makes steps, and the watcher has seen them."""
    wait_for((evidence / "job.json").exists)
    wait_for((job.place / "started").exists)
    time.sleep(2)  # two beats of each rank


def _is_reported(evidence: Path) -> bool:
    return bool(list(evidence.glob("incidents/000/incident.json")))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder of this machine."""
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


def _count_incident(disk: SharedDisk, place: Path, ranks: int) -> tuple[int, Counter[str]]:
    """Let a job stall; return what the incident asked of the server, and what its end asked."""
    # What is under the mount is looked at where it lies: this process asks nothing.
    backing = disk.path.with_name("backing") / "ev"
    with simulated_job(place, disk.path / "ev", ranks) as job:
        _wait_for_steps(job, backing)
        own = job.list_pids()
        assert len(own) == ranks + 1
        disk.counts.clear()
        job.stall()
        wait_for(lambda: _is_reported(backing), 300)
        time.sleep(1)
        count, kinds = disk.count_metadata(), Counter[str]()
        for (pid, kind), number in list(disk.counts.items()):
            assert pid not in own, "no rank, and not who starts them"
            kinds[kind] += number
        assert job.end(120) == 7
    incident = backing / "incidents" / "000"
    node = socket.gethostname()
    assert {path.name for path in incident.iterdir()} == {
        f"{node}{SUFFIX}", "incident.json", "report.html", "report.json", "report.txt"
    }  # fmt: skip
    members = list_archive(incident / f"{node}{SUFFIX}").by_name
    assert {f"{node}/rank-{rank}/stacks-0.json" for rank in range(ranks)} <= set(members)
    return count, kinds


@pytest.mark.slow
def test_incident_asks_the_server_the_same_for_few_ranks_and_for_many(
    tmp_path: Path, place: Path
) -> None:
    counts = []
    for ranks in (3, 12):
        (tmp_path / f"of-{ranks}").mkdir()
        (place / f"of-{ranks}").mkdir()
        with shared_disk(tmp_path / f"of-{ranks}") as disk:
            count, kinds = _count_incident(disk, place / f"of-{ranks}", ranks)
            print(ranks, count, dict(kinds))
            counts.append(count)
    # 70 for the archive, the report in its forms and the logs of faults. A retry of the kernel's,
    # or what it has forgotten meanwhile, is some more.
    assert max(counts) <= 85, counts
    assert max(counts) - min(counts) <= 15, counts


PRINTS_AND_FAILS = """
import os, subprocess, sys, time
if "RANK" not in os.environ:
    shape = {"WORLD_SIZE": sys.argv[1]}
    ranks = []
    for rank in range(int(sys.argv[1])):
        env = {**os.environ, **shape, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    sys.exit(max(one.wait() for one in ranks))
print("a line of", os.environ["RANK"], flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
sys.exit(3)
"""


@pytest.mark.slow
def test_end_of_a_job_that_failed_asks_the_same_for_few_ranks_and_for_many(
    tmp_path: Path, place: Path
) -> None:
    (place / "job.py").write_text(PRINTS_AND_FAILS)
    counts = [_count_failing_end(tmp_path / str(ranks), place, ranks) for ranks in (2, 8)]
    assert max(counts) - min(counts) <= 15, counts


def _count_failing_end(folder: Path, place: Path, ranks: int) -> int:
    """Return what the end of a job asked whose ranks have printed, and fail."""
    folder.mkdir()
    go = place / f"go-{ranks}"
    job = [sys.executable, str(place / "job.py"), str(ranks), str(go)]
    with shared_disk(folder) as disk:
        backing = disk.path.with_name("backing") / "ev"
        with subprocess.Popen(
            [*WHYSTUCK, "run", "--no-agent", "--evidence", str(disk.path / "ev"), "--", *job],
            env=clean_environment(),
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_for(lambda: len(list(backing.glob("rounds/0/*/rank-*/log.txt"))) == ranks)
                disk.counts.clear()
            finally:
                go.touch()
            assert process.wait(120) == 3
        count = disk.count_metadata()
        members = list_archive(next(backing.glob(f"incidents/000/*{SUFFIX}"))).by_name
        assert sum(name.endswith("/log.txt") for name in members) == ranks
    return count


@pytest.mark.slow
def test_job_goes_on_while_the_server_hangs(tmp_path: Path, place: Path) -> None:
    with shared_disk(tmp_path, delay_s=0.01) as disk:
        backing = disk.path.with_name("backing") / "ev"
        with simulated_job(place, disk.path / "ev", 4) as job:
            _wait_for_steps(job, backing)
            disk.is_open.clear()
            job.stall()
            lines = job.count_lines()
            wait_for(lambda: job.count_lines() > lines + 500)
            job.signal()
            wait_for(lambda: "GOT SIGUSR1" in job.output)
            assert not _is_reported(backing)
            disk.is_open.set()
            wait_for(lambda: _is_reported(backing), 300)
            assert job.end(120) == 7
        # What the report of the night said is read back from the archive.
        report = json.loads((backing / "incidents/000/report.json").read_bytes())
        incident = disk.path / "ev" / "incidents" / "000"
        done = run_whystuck("diagnose", incident, "--format", "json", cwd=place)
        assert json.loads(done.stdout)["verdict"] == report["verdict"]
