"""The agent beside a job: started, started anew, ended; and the job, which must not notice."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun
from tests.probe.job import job_dir
from tests.probe.kineto.fabric import WAIT_S, wait_until

from whystuck.evidence.agent import KINETO_CONFIG_FILE
from whystuck.launch import agent_child
from whystuck.launch.agent_child import MAX_STARTS, AgentChild, NoAgent, make_agent

# Serves a socket in the folder of the job, as the agent does, and says so.
SERVES = """
import os, signal, socket, sys, time
own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
path = os.path.join(sys.argv[1], "k", "dynolog")
if os.path.exists(path): os.unlink(path)
own.bind(path)
print("serves", signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
"""
STAYS = SERVES + "while True: time.sleep(60)\n"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAYS
SAYS_MUCH = (
    SERVES + "print('x' * (5 << 20), flush=True)\nprint('last', flush=True)\ntime.sleep(60)\n"
)


@contextmanager
def agent(code: str) -> Iterator[tuple[AgentChild, list[str], Path]]:
    """Start some Python in place of an agent."""
    with job_dir() as folder:
        notes: list[str] = []
        log = folder / "log" / "agent.log"
        command = [sys.executable, "-S", "-c", code, str(folder)]
        child = AgentChild(command, folder, log, notes.append, lambda work: work())
        child.start()
        try:
            yield child, notes, log
        finally:
            child.stop()


def look_until(child: AgentChild, condition: Callable[[], object]) -> None:
    """Look, as the supervisor does, until something is so."""

    def is_so() -> object:
        child.look()
        return condition()

    wait_until(is_so)


def serves(log: Path, times: int = 1) -> bool:
    """Return whether the agent has begun to serve so many times."""
    # Whole lines: without a buffer, one `print` is several writes.
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    said = [line for line in lines if line.startswith("serves") and line.endswith("\n")]
    return len(said) >= times


def test_agent_has_its_folder_log_and_no_blocked_signal() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with agent(STAYS) as (child, notes, log):
            wait_until(lambda: serves(log))
            assert child.variables == {"WHYSTUCK_AGENT_DIR": str(child.folder)}
            assert child.folder.stat().st_mode & 0o777 == 0o700
            assert "INTERVAL_SECS=1" in (child.folder / KINETO_CONFIG_FILE).read_text()
            assert os.getpgid(child.pid) != os.getpgid(0)
            pid = child.pid
            child.stop()
            assert "serves set()" in log.read_text()
            assert not psutil.pid_exists(pid)
            assert not (child.folder / "dynolog").exists()
            assert not notes
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_agent_that_is_killed_leaves_no_socket_and_is_started_anew_some_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_child, "_FIRST_WAIT_S", 0.05)
    with agent(STAYS) as (child, notes, log):
        for times in range(1, MAX_STARTS + 1):
            look_until(child, lambda times=times: serves(log, times))  # type: ignore[misc]
            pid = child.pid
            os.kill(pid, signal.SIGKILL)
            look_until(child, lambda pid=pid: child.pid != pid)  # type: ignore[misc]
            # Gone with the look that sees the end, and before the next one is there.
            assert child.pid or not (child.folder / "dynolog").exists()
        for _ in range(10):
            child.look()
        assert child.pid == 0
    assert len(notes) == MAX_STARTS
    assert all("signal 9" in note for note in notes)
    assert "goes on without traces" in notes[-1]


def test_agent_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_child, "_STOP_S", 0.2)
    with agent(IGNORES_TERM) as (child, _, log):
        wait_until(lambda: serves(log))
        pid = child.pid
        child.stop()
        assert not psutil.pid_exists(pid)


def test_log_that_grows_keeps_its_end() -> None:
    with agent(SAYS_MUCH) as (child, _, log):
        wait_until(lambda: serves(log) and log.read_bytes().endswith(b"last\n"))
        child.look()
        assert log.stat().st_size < 1 << 20
        assert log.read_bytes().endswith(b"last\n")


def test_agent_that_cannot_be_started_is_noted() -> None:
    with job_dir() as folder:
        notes: list[str] = []
        child = AgentChild(
            ["/nonexistent/python"], folder, folder / "agent.log", notes.append, lambda _: None
        )
        child.start()
        child.look()
        child.stop()
    assert child.pid == 0
    assert "cannot be started" in notes[0]


@pytest.mark.parametrize("name", ["KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR"])
def test_agent_of_the_user_stays_the_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    notes: list[str] = []
    made = make_agent(
        tmp_path, tmp_path / "agent.log", notes.append, lambda _: None, is_wanted=True
    )
    assert isinstance(made, NoAgent)
    assert name in notes[0]
    assert not made.variables


@pytest.mark.parametrize(("is_wanted", "variable"), [(False, "0"), (True, "1")])
def test_agent_that_nobody_wants_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, *, is_wanted: bool
) -> None:
    monkeypatch.setenv("WHYSTUCK_DISABLE", variable)
    made = make_agent(
        tmp_path, tmp_path / "agent.log", lambda _: None, lambda _: None, is_wanted=is_wanted
    )
    assert isinstance(made, NoAgent)


WITHOUT_TORCH = "import os; print(os.environ.get('WHYSTUCK_AGENT_DIR'))"


@pytest.mark.parametrize("option", ["--agent", "--no-agent"])
def test_run_names_the_folder_of_its_agent_and_leaves_nothing_of_it(
    tmp_path: Path, option: str
) -> None:
    ended = run_whystuck(
        "run", "--evidence", "ev", option, "--", sys.executable, "-c", WITHOUT_TORCH, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    folder = Path(ended.stdout.decode().strip())
    logs = [*(tmp_path / "ev").rglob("agent.log")]
    assert (folder.name, len(logs)) == (("k", 1) if option == "--agent" else ("None", 0))
    assert not folder.is_absolute() or not folder.exists()
    assert not _agents_of(folder)


def _agents_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder.parent) in process.cmdline():
                found.append(process)
    return found


TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = time.monotonic()
for step in range(10**6):
    optimizer.zero_grad()
    model(torch.full((4, 16), step % 7 + dist.get_rank())).sum().backward()
    if step < 200:
        optimizer.step()
    done = torch.tensor([float(time.monotonic() - start > SECONDS)])
    dist.all_reduce(done)
    if step >= 200 and done.item():
        break
if dist.get_rank() == 0:
    print(model.module.weight.detach().numpy().tobytes().hex())
""".replace("torch.full((4, 16), step % 7 + dist.get_rank())", "torch.ones(4, 16) * (step % 7)")
TRAIN += END


@pytest.mark.slow
def test_job_with_and_without_an_agent_is_the_same_to_the_byte(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("SECONDS", "3"))
    outcomes = {}
    for option in ("--agent", "--no-agent"):
        command = [
            "run",
            "--evidence",
            f"ev{option}",
            option,
            "--",
            *torchrun(2, script, is_traced=True),
        ]
        ended = run_whystuck(*command, cwd=tmp_path)
        outcomes[option] = (ended.returncode, ended.stdout, ended.stderr)
    assert outcomes["--agent"] == outcomes["--no-agent"]
    assert outcomes["--agent"][0] == 0


@pytest.mark.slow
def test_job_whose_agent_is_killed_ends_as_ever(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("SECONDS", "8").replace("_exit(0)", "_exit(42)"))
    command = ["run", "--evidence", "ev", "--", *torchrun(2, script, is_traced=True)]
    process = subprocess.Popen(
        [*WHYSTUCK, *command],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ends = threading.Event()
    killed: set[int] = set()

    def kill() -> None:
        while not ends.wait(0.5):
            with suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    if "agent" in child.cmdline()[-4:]:
                        child.kill()
                        killed.add(child.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    out, err = process.communicate(timeout=300)
    ends.set()
    killer.join()
    assert process.returncode == 1  # torchrun's own, of ranks that end with 42
    assert b"ERROR:20" not in err  # a line of Kineto
    assert len(out.splitlines()) == 1
    assert len(killed) == MAX_STARTS
    assert "goes on without traces" in (tmp_path / "ev" / "fault.log").read_text()


STOPS = """
import os, sys, time
import torch
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
while not os.path.exists("stop"):
    optimizer.zero_grad()
    layer(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
while not os.path.exists("end"):
    time.sleep(0.1)
sys.exit(0)
"""


@pytest.mark.slow
def test_trace_of_iterations_that_do_not_come_is_ended_early(tmp_path: Path) -> None:
    script, traces = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(STOPS)
    command = [
        "run",
        "--evidence",
        "ev",
        "--stall-after",
        "600",
        "--",
        *torchrun(1, script, is_traced=True),
    ]
    process = subprocess.Popen([*WHYSTUCK, *command], cwd=tmp_path, env=clean_environment())
    ask = ["trace", "start", "--pid", str(process.pid), "--iterations", "10000"]
    wait_until(lambda: "Registered" in "".join(map(Path.read_text, tmp_path.rglob("agent.log"))))
    with (tmp_path / "told").open("wb") as told:
        tracing = subprocess.Popen(
            [*WHYSTUCK, *ask, "--wait", "-o", str(traces)], cwd=tmp_path, stdout=told
        )
    wait_until(lambda: b"collecting" in (tmp_path / "told").read_bytes())
    (tmp_path / "stop").touch()
    # GIVEN a rank that makes no more steps, THEN the agent sees it, and the probe ends its trace
    assert tracing.wait(timeout=WAIT_S) == 0
    (tmp_path / "end").touch()
    assert process.wait(timeout=WAIT_S) == 0
    assert b"the rank has made no step for" in (tmp_path / "told").read_bytes()
    (file,) = traces.glob("*.json.gz")
    assert b'"traceEvents"' in gzip.decompress(file.read_bytes())
