"""The installed commands with real jobs: as Ray calls them, as dynolog's users do, and our own."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.ports import find_port

BIN = Path(sys.executable).parent
WAIT_S = 120.0
_T = TypeVar("_T")

JOB = """
import os, sys, time, torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while not os.path.exists(sys.argv[1]):
    with torch.profiler.record_function(f"iteration_{step}"):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    step += 1
    if step == 3:
        print(os.getpid(), flush=True)
"""


def wait_for(find: Callable[[], _T | None]) -> _T:
    until_s = time.monotonic() + WAIT_S
    while not (found := find()):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    return found


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as Ray runs its daemon, and see that it ends in good order."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=environment,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def job(
    tmp_path: Path, environment: dict[str, str], *launcher: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A job that trains until it is told to end, and ends with its own code."""
    script, stop, out = (tmp_path / name for name in ("train.py", "stop", "job.out"))
    script.write_text(JOB)
    command = [*(launcher or (sys.executable,)), str(script), str(stop)]
    with out.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.DEVNULL,
            env={**environment, "KINETO_USE_DAEMON": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        stop.touch()
        assert process.wait(WAIT_S) == 0, "the job keeps its own exit code"


def plain_environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KINETO")}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


def run(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = str(BIN / command[0])
    return subprocess.run(
        [program, *command[1:]],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=WAIT_S,
    )


def read_trace(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert isinstance(found, dict)
    return found


def iterations_of(trace: dict[str, Any]) -> list[str]:
    names = {one.get("name", "") for one in trace["traceEvents"]}
    return sorted(name for name in names if name.startswith("iteration_"))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short path, as Kineto needs it."""
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("is_abstract", [True, False])
def test_ray_profiles_a_worker(tmp_path: Path, short_path: Path, is_abstract: bool) -> None:
    more = {} if is_abstract else {"KINETO_IPC_SOCKET_DIR": str(short_path)}
    environment = plain_environment(**more)
    port = str(find_port())
    log = tmp_path / "daemon.log"
    daemon = [str(BIN / "dynolog"), "--enable_ipc_monitor", "--port", port]
    with running(daemon, log, environment) as process:
        if is_abstract:
            wait_for(lambda: b"serves" in log.read_bytes() or process.poll() is not None)
            if process.poll() is not None:
                pytest.skip(f"the abstract name is taken: {log.read_text()}")
        with job(tmp_path, environment) as worker:
            wait_for((tmp_path / "job.out").read_text)
            trace_file = tmp_path / "gputrace_10.0.0.1_20260101.json"
            gputrace = ["dyno", "--port", port, "gputrace", "--pids", str(worker.pid)]
            gputrace += ["--log-file", str(trace_file), "--process-limit", "1"]

            def ask() -> str:
                done = run(*gputrace, "--iterations", "4", environment=environment)
                assert done.returncode == 0, done.stderr
                return "" if "No processes were matched" in done.stdout else done.stdout

            out = wait_for(ask)
            assert f'"processesMatched":[{worker.pid}]' in out
            pattern = trace_file.name.replace(".json", "*.json")
            found = wait_for(lambda: next(tmp_path.glob(pattern), None))
            assert str(found) in out, "the file lies where the client was told"
            assert len(iterations_of(read_trace(found))) >= 4
        assert process.poll() is None
    assert f"Registered process ({worker.pid}, " in log.read_text()
    assert process.returncode == 0


@pytest.mark.slow
def test_running_job_is_traced_from_the_command_line(tmp_path: Path, short_path: Path) -> None:
    folder = short_path / "a"
    environment = plain_environment(KINETO_IPC_SOCKET_DIR=str(folder))
    port = find_port()
    command = [str(BIN / "whystuck"), "agent", "--folder", str(folder), "--port", str(port)]
    launcher = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2")
    with ExitStack() as stack:
        agent = stack.enter_context(running(command, tmp_path / "agent.log", environment))
        stack.enter_context(job(tmp_path, environment, *launcher))
        wait_for(lambda: len((tmp_path / "job.out").read_text().split()) == 2)

        def ranks(*choice: str) -> int:
            done = run("whystuck", "trace", "list", *choice, environment=environment)
            return done.stdout.count("  rank  ")

        here = ("--nodes", f"localhost:{port}")
        wait_for(lambda: ranks(*here) == 2)
        for choice in (("--job", str(agent.pid)), here):
            out = tmp_path / f"out{len(choice[1])}"
            command = ["whystuck", "trace", "start", *choice, "--iterations", "3", "--shapes"]
            done = run(*command, "--wait", "-o", str(out), environment=environment)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.splitlines()[-1] == f"whystuck trace analyze {out}"
            traces = [read_trace(path) for path in sorted(out.iterdir())]
            assert [one["distributedInfo"]["rank"] for one in traces] == [0, 1]
            assert [one["distributedInfo"]["world_size"] for one in traces] == [2, 2]
            assert all(len(iterations_of(one)) >= 3 for one in traces)
        done = run("whystuck", "trace", "analyze", str(out), environment=environment)
        assert done.returncode in {0, 1, 3}, done.stderr
        assert not list(Path("/tmp").glob("whystuck-trace-*")), "nothing is left on the node"


@pytest.mark.slow
def test_real_client_bytes_are_answered_by_a_real_agent(short_path: Path) -> None:
    """The agent as a process of its own, and requests as dynolog's client sends them."""
    environment = plain_environment(KINETO_IPC_SOCKET_DIR=str(short_path / "a"))
    port = find_port()
    daemon = [str(BIN / "dynolog"), "--enable_ipc_monitor", f"--port={port}"]
    with running(daemon, short_path / "log", environment) as process:
        silent = wait_for(lambda: connect("127.0.0.1", port))
        for host in ("127.0.0.1", "::1"):
            for body, reply in (
                (b'{"fn":"getStatus"}', b'{"status":1}'),
                (b'{"fn":"getVersion"}', b'{"version":"0.6.0"}'),
                (b'{"fn":"nonsense"}', b""),
            ):
                with socket.create_connection((host, port)) as client:
                    client.sendall(len(body).to_bytes(4, sys.byteorder) + body)
                    client.settimeout(60)
                    got = b"".join(iter(lambda: client.recv(1000), b""))
                assert got[4:] == reply
        silent.close()
        with running(daemon, short_path / "log2", environment) as second:
            assert second.wait(60) != 0, "two daemons on one port"
        text = (short_path / "log2").read_text()
        assert "error: " in text
        assert "hint: " in text
        assert process.poll() is None


def connect(host: str, port: int) -> socket.socket | None:
    try:
        return socket.create_connection((host, port))
    except OSError:
        return None
