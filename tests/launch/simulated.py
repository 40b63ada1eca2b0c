"""Jobs of many ranks that cost next to nothing: each is a fork that speaks as a probe does.

They make no step from when a file is there, as ranks that are stuck; the process that started them
goes on printing lines, answers a signal, and tells how long it was ever held up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.launch.running import WHYSTUCK, clean_environment

SCRIPT = """
import json, os, signal, socket, struct, sys, time
ranks, place = int(sys.argv[1]), sys.argv[2]
folder = os.environ["WHYSTUCK_JOB_DIR"]
beat = struct.Struct("=8sQQQqqqqqqqQ")


def say_hello(rank):
    hello = {"type": "hello", "version": 1, "rank": rank, "pid": os.getpid(), "is_member": True,
             "world_size": int(os.environ.get("SIMULATED_WORLD", ranks)), "torch": "2.13.0"}
    while True:
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(folder + "/supervisor.sock")
            except OSError:
                time.sleep(0.01)
                continue
            one.sendall(json.dumps(hello).encode())
            one.recv(1)
            return


def be_rank(rank):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    say_hello(rank)
    file = os.open(f"{folder}/beat-{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
    steps = number = 0
    while not os.path.exists(place + "/end"):
        steps += not os.path.exists(place + "/stall")
        number += 1
        os.pwrite(file, beat.pack(b"WSBEAT01", number, time.monotonic_ns(), time.time_ns(), rank,
                                  ranks, steps, steps, steps, 0, 0, number), 0)
        time.sleep(0.5)


for rank in range(ranks):
    if not os.fork():
        be_rank(rank)
        os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: print("GOT SIGUSR1", flush=True))
open(place + "/started", "w").close()
longest = lines = 0
while not os.path.exists(place + "/end"):
    before = time.monotonic()
    print("step", lines, "x" * 200, flush=True)
    longest, lines = max(longest, time.monotonic() - before), lines + 1
    time.sleep(0.01)
for rank in range(ranks):
    os.wait()
print(f"LONGEST {longest * 1000:.1f} ms of {lines}", flush=True)
sys.exit(7)
"""
WAIT_S = 60.0


def wait_for(is_true: Callable[[], object], seconds: float = WAIT_S) -> None:
    """Wait until something holds."""
    deadline_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


class SimulatedJob:
    """A job under ``whystuck run``, whose output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], place: Path) -> None:
        self.process = process
        self.place = place
        self._output = place / "output"

    @property
    def output(self) -> str:
        """All that was written so far."""
        return self._output.read_text(errors="replace")

    def count_lines(self) -> int:
        """Return how many lines of the job have come out."""
        return self.output.count("step ")

    def list_pids(self) -> set[int]:
        """Return the ranks, and the process that started them."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return {one.pid for one in below if one.cmdline()[1:2] == [str(self.place / "job.py")]}

    def stall(self) -> None:
        """Let no rank make a step any more."""
        (self.place / "stall").touch()

    def signal(self) -> None:
        """Send what the job answers with a line."""
        os.kill(self.process.pid, signal.SIGUSR1)

    def end(self, seconds: float = WAIT_S) -> int:
        """Let the job end, and return the exit code."""
        (self.place / "end").touch()
        return self.process.wait(seconds)

    def read_longest_ms(self) -> float:
        """Return for how long the job was held up most, after its end."""
        return float(self.output.partition("LONGEST ")[2].split()[0])


@contextmanager
def simulated_job(
    place: Path, evidence: Path, ranks: int, *options: str, **variables: str
) -> Iterator[SimulatedJob]:
    """Start a job of ``ranks`` ranks with its evidence in a folder; end it with the block.

    Args:
        place: An empty folder of this machine.
        evidence: The evidence folder.
        ranks: How many processes say that they are ranks.
        options: Those of ``whystuck run``.
        variables: Of the environment of ``whystuck run``.
    """
    (place / "job.py").write_text(SCRIPT)
    run = ["run", "--evidence", str(evidence), "--stall-after", "3", *options, "--"]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            [*WHYSTUCK, *run, "python3", str(place / "job.py"), str(ranks), str(place)],
            env=clean_environment(**variables),
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield SimulatedJob(process, place)
        finally:
            (place / "end").touch()
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()
