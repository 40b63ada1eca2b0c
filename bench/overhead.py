"""What whystuck costs a healthy job: CPU time of the probe's thread, and of the supervisor.

    python bench/overhead.py [--seconds 60] [--ranks 4] [--pairs 8]

A job of all-reduces runs under ``whystuck run``. Every thread's CPU time is read from /proc, so
what the job itself does is not counted. The import of the probe is timed in fresh interpreters,
with the byte code that pip makes when it installs, and without.
The floor is an empty Python thread that wakes up once a second.

What ``--agent`` costs is the CPU time of a step in all threads of a rank, also of the one of Kineto
that polls once a second. A job runs with it and with ``--no-agent``, in turns; the median of the
differences and their quartiles are shown. The first pair is left out: it warms the machine up.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

TRAIN = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
end = torch.tensor([time.time() + float(sys.argv[1])], dtype=torch.float64)
dist.broadcast(end, 0)
value = torch.ones(1024)
while True:
    dist.all_reduce(value)
    value.fill_(1)
    time.sleep(0.02)
    over = torch.tensor([float(time.time() > end.item())])
    dist.all_reduce(over)
    if over.item() > 0:
        break
dist.destroy_process_group()
"""
THREAD_NAME = "whystuck-probe"
PACKAGE = Path(__file__).resolve().parent.parent / "src/whystuck"


def measure_job(seconds: float, ranks: int) -> tuple[list[float], float]:
    """Return the CPU share of each rank's probe thread, and that of the supervisor."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        command = [sys.executable, "-m", "whystuck", "run", "--evidence", f"{folder}/ev", "--"]
        command += ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
        process = subprocess.Popen(
            [*command, str(script), str(seconds + 5)], env=environment, stderr=subprocess.DEVNULL
        )
        pids = wait_for_ranks(process, ranks)
        supervisor = psutil.Process(process.pid)
        begin_s, before = time.monotonic(), [probe_cpu_s(pid) for pid in pids]
        own = sum(supervisor.cpu_times()[:2])
        time.sleep(seconds)
        after, elapsed_s = [probe_cpu_s(pid) for pid in pids], time.monotonic() - begin_s
        own = sum(supervisor.cpu_times()[:2]) - own
        process.wait()
    shares = [((b or 0) - (a or 0)) / elapsed_s for a, b in zip(before, after, strict=True)]
    return shares, own / elapsed_s


def wait_for_ranks(process: subprocess.Popen[bytes], ranks: int) -> list[int]:
    """Wait until all ranks train, and return their pids."""
    while process.poll() is None:
        found = [
            child.pid
            for child in psutil.Process(process.pid).children(recursive=True)
            if probe_cpu_s(child.pid) is not None
        ]
        if len(found) == ranks:
            time.sleep(3)
            return found
        time.sleep(0.2)
    message = "the job ended before it trained"
    raise SystemExit(message)


def probe_cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of the probe's thread so far; None before there is one."""
    try:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            if (task / "comm").read_text().strip() == THREAD_NAME:
                # schedstat has nanoseconds, where stat has ticks of 10 ms
                return int((task / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return None
    return None


def measure_import(environment: dict[str, str], code: str, rounds: int = 20) -> float:
    """Return the median CPU milliseconds that ``code`` reports in fresh interpreters."""
    # Byte code is there or not as the caller has arranged it; no run makes it for the next one.
    environment = os.environ | environment | {"PYTHONDONTWRITEBYTECODE": "1"}
    times = [
        float(subprocess.check_output([sys.executable, "-c", code], env=environment))
        for _ in range(rounds)
    ]
    return statistics.median(times)


def measure_imports(folder: Path) -> dict[str, float]:
    """Measure copies of the probe in ``folder``, with the byte code of pip and without."""
    package = folder / "whystuck"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "probe", package / "probe", ignore=hidden)
    shutil.copy(PACKAGE / "__init__.py", package)
    job = folder / "job"
    job.mkdir()
    asked = {"WHYSTUCK_JOB_DIR": str(job), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    active = ACTIVE.format(site=str(package / "probe/site"))
    without = measure_import(asked, active)
    compileall.compile_dir(package, quiet=1)
    return {
        "idle": measure_import({}, IDLE.format(root=str(folder))),
        "active": measure_import(asked, active),
        "without": without,
    }


IDLE = """
import sys, time; sys.path.insert(0, {root!r}); t = time.process_time()
from whystuck.probe import autoload; autoload()
print((time.process_time() - t) * 1e3)
"""
ACTIVE = """
import sys, time; sys.path.insert(0, {site!r})
sys.modules.pop('sitecustomize', None)
t = time.process_time()
try:
    import sitecustomize
except ImportError:  # as Python does, where the job has none
    pass
print((time.process_time() - t) * 1e3)
"""


STEPS = """
import resource, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(32, 64)
def train(seconds):
    steps, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        steps += 1
    return steps
def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
train(2)
before_s = cpu_s()
steps = train(float(sys.argv[1]))
print(1e3 * (cpu_s() - before_s) / steps)
dist.destroy_process_group()
"""


def measure_step(option: str, seconds: float) -> float:
    """Return the CPU milliseconds of a step in a job of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "steps.py"
        script.write_text(STEPS)
        command = [sys.executable, "-m", "whystuck", "run", "--evidence", f"{folder}/ev", option]
        command += ["--", "torchrun", "--standalone", "--nproc-per-node", "1"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
        said = subprocess.check_output([*command, str(script), str(seconds)], env=environment)
    return float(said)


def measure_agent(pairs: int, seconds: float) -> tuple[float, list[float]]:
    """Return the CPU milliseconds of a step without an agent, and what it adds in percent."""
    without, added = [], []
    for pair in range(pairs + 1):
        options = ["--no-agent", "--agent"]
        times = {one: measure_step(one, seconds) for one in options[:: 1 - 2 * (pair % 2)]}
        if pair:
            without.append(times["--no-agent"])
            added.append(100 * (times["--agent"] / times["--no-agent"] - 1))
    return statistics.median(without), added


def measure_floor(seconds: float = 20.0) -> float:
    """Return the CPU share of a Python thread that wakes up once a second and does nothing."""
    begin_s = time.thread_time()
    for _ in range(int(seconds)):
        time.sleep(1.0)
    return (time.thread_time() - begin_s) / seconds


def main() -> None:
    """Measure, and print one figure a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=8, help="0 leaves the agent out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure_imports(Path(folder))
    print(f"import, nothing asked   {times['idle']:8.3f} ms of CPU  (limit 1 ms)")
    print(f"import, in a rank       {times['active']:8.3f} ms of CPU  (limit 5 ms)")
    print(f"  without byte code     {times['without']:8.3f} ms of CPU")
    shares, supervisor = measure_job(options.seconds, options.ranks)
    floor = measure_floor(min(options.seconds, 20.0))
    print(f"probe, worst rank       {max(shares):8.4%} of a core  (limit 0.1 %)")
    print(f"probe, median rank      {statistics.median(shares):8.4%} of a core")
    print(f"floor, an idle thread   {floor:8.4%} of a core")
    print(f"supervisor              {supervisor:8.4%} of a core for {options.ranks} ranks")
    if options.pairs > 1:
        step_ms, added = measure_agent(options.pairs, min(options.seconds, 20.0))
        low, middle, high = statistics.quantiles(added, n=4)
        print(f"a step without an agent {step_ms:8.3f} ms of CPU")
        print(f"an agent adds           {middle:+8.2f} %  (quartiles {low:+.2f} to {high:+.2f} %)")


if __name__ == "__main__":
    main()
