"""The whole way, as a user goes it: an agent, a job that is not changed, a trace, its analysis."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.daemon.agents import LIMIT_S, running_agent, short_folder, wait_until

TRAIN = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
until_s = time.monotonic() + 120
while time.monotonic() < until_s:
    optimizer.zero_grad()
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    steps += 1
    if steps == 5:
        print("trains", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made / "a"


@contextmanager
def training_job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A job that knows nothing of us but the variables of Kineto, once it trains."""
    config = folder.parent / "kineto.conf"
    config.write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = os.environ | {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": str(config),
        "KINETO_LOG_LEVEL": "99",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    job = subprocess.Popen(
        [sys.executable, "-c", TRAIN], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout
        assert job.stdout.readline() == "trains\n"
        yield job
    finally:
        job.kill()
        job.communicate()


def whystuck(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command prints, which finds the agent by its folder."""
    return subprocess.run(
        [sys.executable, "-m", "whystuck", *arguments],
        env=os.environ | {"WHYSTUCK_AGENT_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def read_trace(folder: Path) -> dict[str, Any]:
    [file] = folder.iterdir()
    data = file.read_bytes()
    trace = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    assert isinstance(trace, dict)
    return trace


def test_trace_of_a_running_job_and_its_analysis(folder: Path) -> None:
    out = folder.parent / "traces"
    with running_agent(folder, "--port", "0") as agent, training_job(folder) as job:
        agent.wait_for_log(f"Registered process ({job.pid}, ")
        status = whystuck(folder, "agent", "--status", "--folder", str(folder))
        assert f"rank 0 of 1    pid {job.pid} " in status.stdout

        command = ["trace", "start", "--pid", str(job.pid), "--iterations", "3", "--wait"]
        done = whystuck(folder, *command, "-o", str(out))

        assert done.returncode == 0, done.stderr
        assert job.poll() is None
        trace = read_trace(out)
        assert trace["distributedInfo"]["rank"] == 0
        assert trace["distributedInfo"]["world_size"] == 1
        analysis = whystuck(folder, "trace", "analyze", str(out), "--format", "json")
        assert analysis.returncode != 2, analysis.stderr
        assert json.loads(analysis.stdout)["coverage"]["ranks_seen"] == 1
        job.send_signal(signal.SIGTERM)
        assert job.wait(LIMIT_S) == -signal.SIGTERM
        assert agent.stop() == 0


def test_trace_holds_what_the_notes_say_of_options(folder: Path) -> None:
    out = folder.parent / "traces"
    with running_agent(folder, "--port", "0") as agent, training_job(folder) as job:
        agent.wait_for_log(f"Registered process ({job.pid}, ")
        command = ["trace", "start", "--pid", str(job.pid), "--duration", "0.2", "--wait"]
        more = ["--memory", "--flops", "--modules", "-o", str(out)]
        done = whystuck(folder, *command, *more)
        assert done.returncode == 0, done.stderr
        assert agent.stop() == 0

    events = read_trace(out)["traceEvents"]
    assert any("nn.Module" in one["name"] for one in events if one["ph"] == "X")
    assert any("Input Dims" in one.get("args", {}) for one in events)
    # Where a torch does better one day, the notes and the guides have to be written anew.
    assert not [one for one in events if one["name"] == "[memory]"]
    assert not [one for one in events if "flop" in " ".join(one.get("args", {})).lower()]
    assert done.stderr.count("note: torch ") == 2


@pytest.mark.slow
def test_agent_that_is_stopped_waits_for_the_trace_that_is_being_taken(folder: Path) -> None:
    out = folder.parent / "traces"
    with running_agent(folder, "--port", "0") as agent, training_job(folder) as job:
        agent.wait_for_log(f"Registered process ({job.pid}, ")
        command = ["trace", "start", "--pid", str(job.pid), "--duration", "2", "-o", str(out)]
        assert whystuck(folder, *command).returncode == 0
        raw = Path("/tmp").glob(f"whystuck-traces-{os.getuid()}-*/*-{job.pid}/*.tmp")
        wait_until(lambda: list(raw) or is_tracing(folder, job.pid), "the trace to begin")

        assert agent.stop() == 0

        assert read_trace(out)["distributedInfo"]["rank"] == 0
        assert job.poll() is None


def is_tracing(folder: Path, pid: int) -> bool:
    status = whystuck(folder, "agent", "--status", "--folder", str(folder), "--format", "json")
    [agent] = json.loads(status.stdout)
    return any(one["pid"] == pid and one["is_busy"] for one in agent["processes"])


@pytest.mark.slow
def test_job_outlives_its_agent_and_is_traced_by_the_next_one(folder: Path) -> None:
    out = folder.parent / "traces"
    with running_agent(folder, "--port", "0") as first, training_job(folder) as job:
        first.wait_for_log(f"Registered process ({job.pid}, ")
        first.process.kill()
        first.wait_for_end()
        with running_agent(folder, "--port", "0") as second:
            second.wait_for_log(f"Registered process ({job.pid}, ")
            command = ["trace", "start", "--pid", str(job.pid), "--iterations", "2", "--wait"]
            done = whystuck(folder, *command, "-o", str(out))

            assert done.returncode == 0, done.stderr
            assert read_trace(out)["distributedInfo"]["rank"] == 0
        assert job.poll() is None


@pytest.mark.slow
def test_second_signal_ends_an_agent_at_once(folder: Path) -> None:
    with running_agent(folder, "--port", "0") as agent, training_job(folder) as job:
        agent.wait_for_log(f"Registered process ({job.pid}, ")
        command = ["trace", "start", "--pid", str(job.pid), "--duration", "30"]
        assert whystuck(folder, *command).returncode == 0
        wait_until(lambda: is_tracing(folder, job.pid), "the trace to begin")
        agent.process.send_signal(signal.SIGTERM)
        agent.wait_for_log("ends: SIGTERM came")

        assert agent.stop() == 128 + signal.SIGTERM

        assert not (folder / "dynolog").exists()
        assert job.poll() is None
