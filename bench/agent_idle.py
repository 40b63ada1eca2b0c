"""What an idle agent costs: a job's step time, and its own CPU and memory.

    python bench/agent_idle.py [--pairs 20] [--seconds 60] [--processes 64] [--quick]

A. A training script asks once a second for work while an agent comes and goes, some seconds each:
   two processes of the same script differ by more than what is looked for. Compared is the CPU time
   of a step in the training thread, with the agent and without it, turn by turn. What a shared
   machine does to it is most of the difference; so the rest is counted, too: the CPU time of all
   other threads, in one of which Kineto asks, and what torch itself adds to each step of a job that
   asks.
B. An agent with all its sources and a Prometheus endpoint, which is read every 10 s, serves 64
   processes with ranks. Most of them speak the fabric's protocol and nothing else, as each real
   one takes 200 MB; some are real torch jobs. They ask every 5 s, which is Kineto's own interval,
   and then every second, as under ``whystuck run``. Its CPU time and its memory are the kernel's.
   Beside it is the floor: a loop that reads a request and sends an empty answer, and no more. Both
   grow with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.ports import find_port

CPU_BAR_PERCENT = 0.5
RSS_BAR_MB = 60
STEP_BAR_PERCENT = 0.5
TRAIN = """
import json, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(32, 64)
def step():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
until_s = time.monotonic() + 2
while time.monotonic() < until_s:
    step()
windows = {}
began = time.monotonic(), time.process_time(), time.thread_time()
until_s = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until_s:
    window = int(time.time() * 2)
    begin_s, steps = time.thread_time(), 0
    while int(time.time() * 2) == window:
        step()
        steps += 1
    windows[window] = 1e3 * (time.thread_time() - begin_s) / steps
passed_s = time.monotonic() - began[0]
other_s = (time.process_time() - began[1]) - (time.thread_time() - began[2])
print(json.dumps({"windows": windows, "other_percent": 100 * other_s / passed_s}))
"""
COUNT = """
import time
import torch
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=0.1)
costs = []
for _ in range(50):
    begin_s = time.thread_time()
    for _ in range(500):
        optimizer.step()
    costs.append(1e6 * (time.thread_time() - begin_s) / 500)
print(min(costs))
"""
# What Kineto's client does, without torch: it asks at its interval, and reads the answer.
CLIENT = """
import os, random, socket, struct, sys, time, uuid
folder, every_s = sys.argv[1], float(sys.argv[2])
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f"{folder}/dynoconfigclient{uuid.uuid4()}")
client.settimeout(0.09)
pids = [os.getpid(), os.getppid()]
body = struct.pack("@iiq2i", 3, len(pids), 0, *pids)
message = struct.pack("@N32s", len(body), b"req") + body
time.sleep(random.random() * every_s)
while os.getppid() != 1:
    try:
        client.sendto(message, f"{folder}/dynolog")
        client.recv(4096)
    except OSError:
        pass
    time.sleep(every_s)
"""


class Agent:
    """An agent in a process of its own, with a folder that Kineto can take."""

    def __init__(self, stack: ExitStack, *options: str, folder: Path | None = None) -> None:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="wb-", dir="/tmp"))
        self.folder = folder or Path(root) / "a"
        command = [sys.executable, "-m", "whystuck", "agent", "--folder", str(self.folder)]
        log = stack.enter_context((Path(root) / "log").open("w"))
        self.process = subprocess.Popen([*command, "--port", "0", *options], stderr=log)
        stack.callback(self.end)
        while not (self.folder / "agent.json").exists():
            if self.process.poll() is not None:
                sys.exit(f"the agent did not start: {(Path(root) / 'log').read_text()}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def cpu_s(self) -> float:
        """CPU seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self, field: str) -> float:
        """A figure of /proc/PID/status, such as VmRSS."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(one.split()[1]) for one in lines if one.startswith(field)) / 1024


def job_environment(folder: Path | None) -> dict[str, str]:
    """The environment of a job, led to the agent in ``folder``, or to none."""
    made = {key: value for key, value in os.environ.items() if not key.startswith("KINETO")}
    made |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    if folder:
        config = folder / "kineto.conf"
        config.write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        made |= {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(folder)}
        made["KINETO_CONFIG"] = str(config)
    return made


def alternate(
    stack: ExitStack, pairs: int, seconds: float
) -> tuple[list[list[range]], dict[str, Any]]:
    """Train while an agent comes and goes.

    Args:
        stack: What ends with the measurement.
        pairs: How often it comes.
        seconds: How long it stays, and how long it is away.

    Returns:
        The half seconds of each turn without and with it, by the wall clock, and what the script
        found.
    """
    with Agent(stack) as agent:
        folder = agent.folder
    total_s = 5 + pairs * 2 * (seconds + 4)
    job = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(total_s)],
        env=job_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(job.kill)
    time.sleep(5)
    turns: list[list[range]] = [[], []]
    for _ in range(pairs):
        turns[0].append(rest(seconds))
        with Agent(stack, folder=folder):
            wait_for_processes(folder, 1)
            turns[1].append(rest(seconds))
    return turns, json.loads(job.communicate()[0])


def rest(seconds: float) -> range:
    """Wait, and return the half seconds that lay in that time as a whole."""
    time.sleep(1)
    begin = int(time.time() * 2) + 1
    time.sleep(seconds)
    return range(begin, int(time.time() * 2))


def interval_of(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by resampling."""
    chance = random.Random(7)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def compare_steps(pairs: int, seconds: float) -> bool:
    """Print what an agent adds to a step; False when the whole interval is above 0.5 %."""
    with ExitStack() as stack:
        turns, found = alternate(stack, pairs, seconds)
    steps_ms = {int(key): value for key, value in found["windows"].items()}
    off, on = (
        [statistics.median(steps_ms[one] for one in turn if one in steps_ms) for turn in kind]
        for kind in turns
    )
    ratios = [100 * (with_it / without - 1) for without, with_it in zip(off, on, strict=True)]
    low, high = interval_of(ratios)
    print(
        f"step: {statistics.median(off):.3f} ms of the training thread; with an agent "
        f"{statistics.median(ratios):+.2f} %, 95 % interval [{low:+.2f}, {high:+.2f}] of {pairs} "
        f"turns of {seconds:g} s\n"
        f"all other threads of the job: {found['other_percent']:.3f} % of a core\n"
        f"torch's own count of steps, in a job that asks: {measure_count_us():.1f} us a step"
    )
    return low < STEP_BAR_PERCENT


def measure_count_us() -> float:
    """Return what torch takes to tell Kineto of a step, in microseconds."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        costs = [
            float(
                subprocess.run(
                    [sys.executable, "-c", COUNT],
                    env=job_environment(place),
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for place in (None, folder)
        ]
    return costs[1] - costs[0]


def start_clients(stack: ExitStack, folder: Path, processes: int, every_s: float) -> None:
    """Start light processes with ranks, which ask for work and do nothing else."""
    for rank in range(processes):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
        }
        start(stack, ["-S", "-c", CLIENT, str(folder), str(every_s)], environment)


def start(stack: ExitStack, command: list[str], environment: dict[str, str]) -> None:
    """Start a Python that ends with the stack."""
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)


def measure_floor(processes: int, every_s: float, seconds: float) -> float:
    """Share of a core, in percent, that answering the same requests takes at least."""
    answer = struct.pack("@N32s", 0, b"req")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        server = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        server.bind(f"{folder}/dynolog")
        server.settimeout(0.2)
        start_clients(stack, folder, processes, every_s)
        time.sleep(5)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        while time.monotonic() - began_s < seconds:
            with suppress(TimeoutError, FileNotFoundError, ConnectionRefusedError):
                _, client = server.recvfrom(4096)
                server.sendto(answer, client)
        return 100 * (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


def count_processes(folder: Path) -> int:
    """How many processes the agent knows."""
    import asyncio

    from whystuck.agent.rpc.client import RpcAddress, call

    address = RpcAddress(path=str(folder / "rpc"))
    reply = asyncio.run(call(address, "whystuck.processes", {}, timeout_s=10))
    return len(reply["processes"])


def scrape(port: int) -> int:
    """Read the metrics, and return how many lines they have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return len(reply.read().splitlines())


def measure_agent(processes: int, real: int, every_s: float, seconds: float) -> bool:
    """Print what the agent uses; False when that is more than the bars."""
    with ExitStack() as stack:
        port = find_port()
        agent = Agent(stack, "--metrics-port", str(port))
        start_clients(stack, agent.folder, processes - real, every_s)
        for _ in range(real):
            start(stack, ["-c", TRAIN, str(seconds + 300)], job_environment(agent.folder))
        known = wait_for_processes(agent.folder, processes)
        # The first ten requests of a process cost more: who it is becomes clear bit by bit.
        time.sleep(min(seconds, 11 * every_s))
        began_s, began_cpu_s, lines, scrape_s = time.monotonic(), agent.cpu_s(), 0, 0.0
        while (gone_s := time.monotonic() - began_s) < seconds:
            if gone_s >= scrape_s:
                scrape_s += 10
                lines = scrape(port)
            time.sleep(0.2)
        percent = 100 * (agent.cpu_s() - began_cpu_s) / (time.monotonic() - began_s)
        rss_mb, peak_mb = agent.memory_mb("VmRSS"), agent.memory_mb("VmHWM")
    floor = measure_floor(processes, every_s, min(seconds, 20))
    print(
        f"agent with {known} of {processes} processes that ask every {every_s:g} s, {real} of them "
        f"real, {lines} lines of metrics every 10 s, over {seconds:.0f} s:\n"
        f"  CPU {percent:.2f} % of a core (bar {CPU_BAR_PERCENT}), of it {floor:.2f} % as floor\n"
        f"  RSS {rss_mb:.1f} MB, at most {peak_mb:.1f} MB (bar {RSS_BAR_MB})"
    )
    return known == processes and percent <= CPU_BAR_PERCENT and peak_mb <= RSS_BAR_MB


def wait_for_processes(folder: Path, processes: int) -> int:
    """Wait until the agent knows so many, and return how many it knows."""
    until_s = time.monotonic() + 120
    while count_processes(folder) < processes and time.monotonic() < until_s:
        time.sleep(0.5)
    return count_processes(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=20, help="turns with and without; 0 leaves A out"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long the agent is watched; 0 leaves B out"
    )
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--real", type=int, default=2, help="how many of them train")
    parser.add_argument("--quick", action="store_true", help="1 pair, 5 s")
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.seconds, options.processes, options.real = 1, 5, 16, 0
    is_good = True
    with suppress(KeyboardInterrupt):
        if options.seconds:
            is_good = measure_agent(options.processes, options.real, 5, options.seconds)
        if options.seconds and not options.quick:
            measure_agent(options.processes, options.real, 1, options.seconds)
        if options.pairs:
            is_good &= compare_steps(options.pairs, 2 if options.quick else 5)
    return 0 if is_good or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
