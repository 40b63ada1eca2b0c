"""From a request to the file: how long a trace on demand takes, and whether it is whole.

    python bench/agent_trace.py [--times 12] [--quick]

A real agent serves a script of one process and a job of four ranks (torchrun, DDP, gloo). Neither
is modified; they ask for work once a second, by Kineto's own configuration file. Requests come at
random moments. A time goes from the request to the packed file with rank and world in it, the
slowest rank's where there are several. The third job runs under `whystuck run`, whose probe counts
steps.

The bars are for the median: what a request waits for is a clock of one second, twice.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from whystuck.agent.agent_list import list_agents
from whystuck.collect.agent_client import AgentError, ask_agent, has_agent
from whystuck.evidence.agent import ENDED, TraceProgress, TraceRequest, TraceState

ITERATIONS_BAR_S = 2.0
DURATION_BAR_S = 5.0
ITERATIONS = 3
DURATION_MS = 500
RANKS = 4
DYNOLOG = "dynolog 0.6, its defaults: 10.9 and 11.6 s for 500 ms (polls every 5 s, 5 s of warm-up)"
WAIT_S = 120.0
TRAIN = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
if len(sys.argv) > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(32, 64)
for step in range(10**9):
    with torch.profiler.record_function(f"iteration_{step}"):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    if step == 100:
        print("stepping", flush=True)
"""


@dataclass(frozen=True)
class Result:
    """The times of one kind of request, and what was wrong with its files."""

    name: str
    bar_s: float
    times_s: list[float]
    faults: list[str]

    @property
    def is_good(self) -> bool:
        return not self.faults and statistics.median(self.times_s) <= self.bar_s

    def show(self) -> None:
        times = sorted(self.times_s)
        print(
            f"  {self.name:30} median {statistics.median(times):5.2f} s  "
            f"least {times[0]:5.2f}  most {times[-1]:5.2f}  n={len(times)}  "
            f"bar {self.bar_s:.0f} s  {'ok' if self.is_good else 'NOT MET'}"
        )
        for fault in self.faults:
            print(f"    {fault}")


def until(is_met: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_met():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"error: {what}")
        time.sleep(0.05)


def take(folder: Path, request: TraceRequest) -> list[TraceProgress]:
    """Ask for a trace, and return how it ended."""
    fields: dict[str, Any] = {"fn": "whystuck.trace.start", "request": request}
    reply = ask_agent(folder, fields, 10)
    while True:
        told = msgspec.convert(reply["progress"], list[TraceProgress])
        if all(one.state in ENDED for one in told):
            return told
        fields = {"fn": "whystuck.trace.progress", "id": reply.get("id", fields.get("id"))}
        fields["timeout_s"] = 2.0
        reply = {"id": fields["id"], **ask_agent(folder, fields, 20)}


def check(told: list[TraceProgress], ranks: int, iterations: int) -> list[str]:
    """Return what is wrong with the files of a request."""
    faults = [f"{one.state}: {one.reason}" for one in told if one.state is not TraceState.WRITTEN]
    if faults or len(told) != max(ranks, 1):
        return faults or [f"{len(told)} processes were traced"]
    seen = []
    for one in told:
        trace = json.loads(gzip.decompress(Path(one.file).read_bytes()))
        info = trace.get("distributedInfo", {})
        if ranks and info != {"rank": one.rank, "world_size": ranks}:
            faults.append(f"rank {one.rank} has {info}")
        names = [event.get("name", "") for event in trace["traceEvents"]]
        steps = sorted(int(name[10:]) for name in names if name.startswith("iteration_"))
        # On a busy machine Kineto stops some iterations too late.
        seen.append(steps[:iterations])
    if iterations and any(found != seen[0] or len(found) < iterations for found in seen):
        faults.append(f"other iterations: {seen}")
    return faults


def measure(folder: Path, ranks: int, times: int) -> list[Result]:
    """Ask again and again, at random moments."""
    chance = random.Random(7)
    results = []
    for name, bar_s, request in (
        (f"{ITERATIONS} iterations", ITERATIONS_BAR_S, TraceRequest(iterations=ITERATIONS)),
        (f"{DURATION_MS} ms", DURATION_BAR_S, TraceRequest(duration_ms=DURATION_MS)),
    ):
        taken, faults = [], []
        with tempfile.TemporaryDirectory() as output:
            for _ in range(times):
                time.sleep(chance.uniform(0, 1))
                told = take(folder, msgspec.structs.replace(request, output=output))
                begin_ns = min((one.requested_ns for one in told), default=0)
                taken.append((max((one.ended_ns for one in told), default=0) - begin_ns) / 1e9)
                faults += check(told, ranks, request.iterations)
        results.append(Result(name, bar_s, taken, faults))
    return results


def count_ranks(folder: Path) -> int:
    try:
        found = ask_agent(folder, {"fn": "whystuck.processes"}, 10)["processes"]
    except AgentError:
        return 0
    # A process that has asked twice: then it is known how often it does.
    asked = [one for one in found if one.get("seen_ns", 0) > one.get("first_seen_ns", 0)]
    return sum(one.get("kind", "process") in ("rank", "process") for one in asked)


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=stream, stderr=stream
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def bench(job: Job, times: int) -> bool:
    """Measure one job."""
    print(job.name, flush=True)
    log = job.top / "job.log"
    with running(job.command, log, OMP_NUM_THREADS="1", **job.environment) as process:
        until(
            lambda: process.poll() is not None or job.find_agent(process.pid) != Path(),
            f"no agent; {log}",
        )
        folder = job.find_agent(process.pid)
        until(
            lambda: process.poll() is not None or count_ranks(folder) >= max(job.ranks, 1),
            f"the job does not ask for work: {log}",
        )
        until(lambda: b"stepping" in log.read_bytes(), f"the job does not step: {log}")
        time.sleep(3)  # some polls more, as in a job that has run for a while
        results = measure(folder, job.ranks, times)
    for one in results:
        one.show()
    return all(one.is_good for one in results)


@dataclass(frozen=True)
class Job:
    """One that is measured; ``folder`` is that of its agent, None when it brings its own."""

    name: str
    top: Path
    command: list[str]
    ranks: int
    environment: dict[str, str]
    folder: Path | None = None

    def find_agent(self, pid: int) -> Path:
        """Return the folder of the agent that serves it, when that is there."""
        if self.folder is not None:
            return self.folder if has_agent(self.folder) else Path()
        own = [Path(one.folder) for one in list_agents() if psutil.Process(one.pid).ppid() == pid]
        return own[0] if own else Path()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=12, help="requests of each kind")
    parser.add_argument("--quick", action="store_true", help="three requests of each kind")
    options = parser.parse_args()
    times = 3 if options.quick else options.times
    # Jobs and agents are ended also when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="wsb", dir="/tmp") as name:
        return 0 if run(Path(name), times) else 1


def run(top: Path, times: int) -> bool:
    folder = top / "k"
    (top / "train.py").write_text(TRAIN)
    (top / "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    script = str(top / "train.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc-per-node={RANKS}", script, "ddp"]
    kineto = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": str(top / "kineto.conf"),
        "KINETO_LOG_LEVEL": "99",
    }
    print(f"{DYNOLOG}\nload of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    agent = [sys.executable, "-m", "whystuck", "agent", "--folder", str(folder), "--port", "0"]
    with running(agent, top / "agent.log"):
        until(lambda: has_agent(folder), "the agent does not serve")
        single = Job("a script", top, [sys.executable, script], 0, kineto, folder)
        ranks = Job(f"{RANKS} ranks, DDP", top, torchrun, RANKS, kineto, folder)
        good = [bench(single, times), bench(ranks, times)]
    command = [sys.executable, "-m", "whystuck", "run", "--evidence", str(top / "evidence"), "--"]
    name = f"{RANKS} ranks, DDP, under whystuck run"
    good.append(bench(Job(name, top, [*command, *torchrun], RANKS, {}), times))
    return all(good)


if __name__ == "__main__":
    sys.exit(main())
