"""What an idle agent costs: a job's step time, and its own CPU and memory.

    python bench/agent_idle.py [--pairs 4] [--seconds 60] [--processes 64] [--quick]

A. The same training script runs in pairs, alone and registered at an agent that it polls once a
   second, both at the same time, so that they share the load of the machine. Compared is the CPU
   time of a step in the training thread, half second by half second; beside it is that of all
   other threads, in one of which Kineto asks.
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
from typing import Any

CPU_BAR_PERCENT = 0.5
RSS_BAR_MB = 60
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

    def __init__(self, stack: ExitStack, *options: str) -> None:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="wb-", dir="/tmp"))
        self.folder = Path(root) / "a"
        command = [sys.executable, "-m", "whystuck", "agent", "--folder", str(self.folder)]
        log = stack.enter_context((Path(root) / "log").open("w"))
        self.process = subprocess.Popen([*command, "--port", "0", *options], stderr=log)
        stack.callback(self.end)
        while not (self.folder / "agent.json").exists():
            if self.process.poll() is not None:
                sys.exit(f"the agent did not start: {(Path(root) / 'log').read_text()}")
            time.sleep(0.05)

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


def run_pair(seconds: float, folder: Path, *, is_first: bool) -> list[dict[str, Any]]:
    """Train alone and registered at the same time, and return what each found, alone first."""
    jobs = {}
    for where in [None, folder] if is_first else [folder, None]:
        jobs[where] = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(seconds)],
            env=job_environment(where),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    return [json.loads(jobs[where].communicate()[0]) for where in (None, folder)]


def interval_of(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by resampling."""
    chance = random.Random(7)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def compare_steps(pairs: int, seconds: float) -> bool:
    """Print what an agent adds to a step; False when the whole interval is above 1 %."""
    ratios, alone, others = list[float](), list[float](), (list[float](), list[float]())
    with ExitStack() as stack:
        agent = Agent(stack)
        for number in range(pairs):
            found = run_pair(seconds, agent.folder, is_first=bool(number % 2))
            both = found[0]["windows"].keys() & found[1]["windows"].keys()
            ratios += [found[1]["windows"][one] / found[0]["windows"][one] for one in both]
            alone += found[0]["windows"].values()
            for place, one in zip(others, found, strict=True):
                place.append(one["other_percent"])
    low, high = interval_of([100 * (one - 1) for one in ratios])
    print(
        f"step: {statistics.median(alone):.3f} ms of the training thread; registered "
        f"{100 * (statistics.median(ratios) - 1):+.2f} %, 95 % interval [{low:+.2f}, {high:+.2f}] "
        f"of {len(ratios)} half seconds in {pairs} pairs\n"
        f"all other threads of the job: {statistics.median(others[0]):.3f} % of a core alone, "
        f"{statistics.median(others[1]):.3f} % registered"
    )
    return low < 1


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


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
        port = free_port()
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
    parser.add_argument("--pairs", type=int, default=4, help="pairs of runs; 0 leaves A out")
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
            is_good &= compare_steps(options.pairs, 3 if options.quick else 20)
    return 0 if is_good or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
