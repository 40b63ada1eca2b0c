"""Stacks of ranks that hang, by a real agent, where py-spy and signals cannot help.

On gloo alone: the stacks are those of its waits.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ports import find_port

from whystuck.collect.agent_client import AgentError, ask_agent, has_agent
from whystuck.collect.processes import stacks
from whystuck.collect.processes.profiler_stacks import ProfilerStacksError, collect_profiler_stacks
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.evidence import records
from whystuck.pipeline import diagnose_paths

JOB = """
import os, sys, time, torch, torch.distributed as dist

def stuck_in_collective():
    if dist.get_rank():
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(600)

dist.init_process_group("gloo")
print(os.getpid(), flush=True)
stuck_in_collective()
"""


@pytest.fixture
def top() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wsp", dir="/tmp") as name:
        yield Path(name)


def _until(is_met: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 90
    while not is_met():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


@pytest.mark.slow
def test_ranks_that_hang_are_looked_at_by_their_own_profiler(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    folder = top / "k"
    agent = subprocess.Popen(
        [sys.executable, "-m", "whystuck", "agent", "--folder", str(folder), "--port", "0"]
    )
    jobs = []
    try:
        _until(lambda: has_agent(folder), "the agent does not serve")
        (top / "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        (top / "job.py").write_text(JOB)
        port = str(find_port())
        for rank in range(2):
            environment = {
                **os.environ,
                "KINETO_USE_DAEMON": "1",
                "KINETO_IPC_SOCKET_DIR": str(folder),
                "KINETO_CONFIG": str(top / "kineto.conf"),
                "KINETO_LOG_LEVEL": "99",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            command = [sys.executable, str(top / "job.py")]
            jobs.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        for job in jobs:
            assert job.stdout is not None
            assert int(job.stdout.readline()) == job.pid
        _until(lambda: _count_processes(folder) == 2, "the ranks do not ask for work")
        targets = [Target(rank, job.pid, "n1") for rank, job in enumerate(jobs)]
        incident = top / "incident"
        incident.mkdir()
        Scene(incident, targets).take(ScenePlan(samples=1))
        for rank in range(2):
            assert (incident / "n1" / f"rank-{rank}" / records.PROFILER_STACKS_FILE).exists()
        report = diagnose_paths([incident])
        text = str(report.findings)
        assert "stuck_in_collective" in text, report
        assert [job.poll() for job in jobs] == [None, None]
    finally:
        for process in [*jobs, agent]:
            process.send_signal(signal.SIGKILL if process is not agent else signal.SIGTERM)
            process.wait(30)
            if process.stdout:
                process.stdout.close()


def _count_processes(folder: Path) -> int:
    return len(ask_agent(folder, {"fn": "whystuck.processes"}, 5)["processes"])


def test_process_without_an_agent_has_none(top: Path) -> None:
    with pytest.raises(ProfilerStacksError):
        collect_profiler_stacks(Target(0, os.getpid(), "n1", top), top / "x.json")
    assert not has_agent(top)


@pytest.mark.parametrize(
    "reply",
    [b"", b"\x05", b"\xff\xff\xff\x7f", b"\x02\0\0\0[]", b"\x02\0\0\0{", b"\x09\0\0\0{bad json"],
)
def test_agent_that_answers_garbage_is_told_of(top: Path, reply: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "rpc"))
        server.listen()

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1000)
                link.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        assert has_agent(top)
        with pytest.raises(AgentError):
            ask_agent(top, {"fn": "x"}, 5)
        thread.join()
    with pytest.raises(AgentError, match="does not answer"):
        ask_agent(top, {"fn": "x"}, 5)
