"""A node with a real endpoint and tracer, and real jobs on it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from whystuck.agent.fabric.addresses import PathAddress
from whystuck.agent.fabric.endpoint import FabricEndpoint
from whystuck.agent.interfaces import Asker, FabricPoll
from whystuck.agent.ondemand.tracer import OnDemandTracer
from whystuck.agent.processes.registry import ProcessRegistry
from whystuck.evidence.agent import (
    ENDED,
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)

WAIT_S = 90.0

STEPS = """
import sys, time, torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0

def train(seconds):
    global step
    end = time.time() + seconds
    while time.time() < end:
        with torch.profiler.record_function(f"iteration_{step}"):
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
        step += 1
"""


class Processes(ProcessRegistry):
    """The registry of a node, and what has asked it."""

    def __init__(self) -> None:
        super().__init__(node="n1")
        self.polls: list[FabricPoll] = []

    def note(self, poll: FabricPoll) -> Asker:
        self.polls.append(poll)
        return super().note(poll)

    def to_trace(self) -> list[ProcessEntry]:
        """Return the processes that have asked more than once, but for launchers."""
        pids = [poll.pid for poll in self.polls]
        found = (one for one in self.list_all() if pids.count(one.pid) > 1)
        return [one for one in found if one.kind in (ProcessKind.RANK, ProcessKind.PROCESS)]


@dataclass
class Node:
    """An agent's folder, what serves it, and the jobs that were started."""

    folder: Path
    processes: Processes
    tracer: OnDemandTracer
    output: Path
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    seen: dict[str, list[TraceState]] = field(default_factory=dict)

    def start_job(
        self, body: str, *, ranks: int = 0, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a script, under torchrun when ``ranks`` are wanted."""
        script = self.folder.parent / f"job{len(self.jobs)}.py"
        script.write_text(STEPS + textwrap.dedent(body))
        command = [sys.executable, str(script)]
        if ranks:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={ranks}", str(script)]
        config = self.folder.parent / "kineto.conf"
        config.write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        env = {
            **os.environ,
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": str(self.folder),
            "KINETO_CONFIG": str(config),
            "KINETO_LOG_LEVEL": "99",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        log = (self.folder.parent / f"job{len(self.jobs)}.log").open("wb")
        with log:
            job = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        self.jobs.append(job)
        return job

    def log(self, number: int = 0) -> str:
        return (self.folder.parent / f"job{number}.log").read_text()

    async def until(self, is_met: Callable[[], Any], what: str = "") -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_met():
            assert time.monotonic() < deadline_s, what or "the condition was not met"
            await asyncio.sleep(0.02)

    async def registered(self, count: int = 1, *, is_stepping: bool = True) -> None:
        """Wait until so many processes have asked twice, and the script says that it steps."""

        await self.until(
            lambda: len(self.processes.to_trace()) >= count, "the job does not ask for work"
        )
        if is_stepping:
            await self.until(lambda: "stepping" in self.log(), "the job does not step")

    async def trace(self, request: TraceRequest) -> list[TraceProgress]:
        """Ask for a trace, and wait for its end."""
        if not request.output and not request.log_file:
            request = msgspec.structs.replace(request, output=str(self.output))
        started = self.tracer.start(request)
        return await self.ended(started[0].request_id) if started else []

    async def ended(self, request_id: str) -> list[TraceProgress]:
        deadline_s = time.monotonic() + WAIT_S
        now = self.tracer.progress(request_id)
        states = self.seen.setdefault(request_id, [])
        while True:
            for one in now:
                if not states or states[-1] is not one.state:
                    states.append(one.state)
            if all(one.state in ENDED for one in now):
                return now
            assert time.monotonic() < deadline_s, now
            now = await self.tracer.wait(request_id, 5.0)


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """Serve a node for the time of a block."""
    top = Path(tempfile.mkdtemp(prefix="wsn", dir="/tmp"))
    folder = top / "k"
    folder.mkdir(mode=0o700)
    processes = Processes()
    tracer = OnDemandTracer(processes, raw_root=top / "raw", folder=folder)
    processes.on_end = lambda entry: tracer.process_ended(entry.pid)
    endpoint = FabricEndpoint(tracer, PathAddress(folder))
    endpoint.start()
    here = Node(folder, processes, tracer, top / "out")
    try:
        yield here
    finally:
        endpoint.close()
        tracer.close()
        processes.close()
        for job in here.jobs:
            end_tree(job)
        shutil.rmtree(top, ignore_errors=True)


def end_tree(job: subprocess.Popen[bytes]) -> None:
    """Kill a job with its ranks, which would go on without their launcher."""
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(job.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    job.kill()
    job.wait()


def read_trace(file: str) -> dict[str, Any]:
    data = Path(file).read_bytes()
    text = gzip.decompress(data) if file.endswith(".gz") else data
    found: dict[str, Any] = json.loads(text)
    return found


def iterations_of(trace: dict[str, Any]) -> set[int]:
    """Return the iterations that lie whole in a trace."""
    names = (event.get("name", "") for event in trace["traceEvents"])
    return {int(name.split("_")[1]) for name in names if name.startswith("iteration_")}


def states_of(told: Sequence[TraceProgress]) -> list[TraceState]:
    return [one.state for one in told]
