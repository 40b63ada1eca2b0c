"""Runs whystuck on hostile evidence, and measures what that costs: seconds, and memory of all its
processes together.

    python bench/hostile.py              # large cases: some GB of disk, some minutes
    python bench/hostile.py --quick      # small ones
    python bench/hostile.py --only dumps # those with a word in their name

A case fails when whystuck shows a traceback, ends with a code that is not documented, hangs, or
takes more memory than its limit; without ``--quick`` also when it takes too long. What counts are
the seconds of CPU of all its processes together, which other work on the machine changes little:
where nothing else runs, it takes no longer. Seconds of the clock are printed beside them.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import whystuck

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench.hostile_traces  # noqa: F401 - adds its cases
from bench.hostile_cases import CASES, Case

LIMIT_MB, LIMIT_S = 500, 10.0
# What is waited for before a case is ended: seconds of the clock, and of CPU.
HANG_S, HANG_CPU_S = 300, 60
# See docs/cli.md.
CODES = {0, 1, 2, 3}
POLL_S, WAIT_S = 0.02, 0.2
# Bytecode is used, as of an installed package: to compile all of it takes a second of each case.
ENVIRONMENT = {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}
START = "import sys; from whystuck.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Result:
    """What one case cost; ``problem`` is empty where nothing is wrong."""

    name: str
    seconds: float
    cpu_s: float
    peak_mb: float
    disk_mb: float
    code: int
    problem: str


class Meter(threading.Thread):
    """Measures a process and all below it, until it is told to end: memory, seconds of CPU."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.peak = 0
        self.cpu_s = 0.0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Measure again and again."""
        while not self.is_over.wait(POLL_S):
            try:
                several = [self.root, *self.root.children(recursive=True)]
            except psutil.Error:
                return
            self.peak = max(self.peak, sum(_memory(one.pid, len(several)) for one in several))
            # Of those that have ended, their parents tell.
            self.cpu_s = max(self.cpu_s, sum(map(_seconds_of, several)))

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Return the code of a process; -1 when it had to be ended."""
        until = time.monotonic() + HANG_S
        while time.monotonic() < until and self.cpu_s < HANG_CPU_S:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=WAIT_S)
        for process in [*self.root.children(recursive=True), self.root]:
            with suppress(psutil.Error):
                process.kill()
        child.wait()
        return -1


def _seconds_of(process: psutil.Process) -> float:
    """Return the seconds of CPU of a process, and of those below it that have ended."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.Error:
        return 0.0


def _memory(pid: int, count: int) -> int:
    """Return the memory of a process; what it shares with others is divided among them."""
    try:
        if count == 1:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGESIZE"
            )
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError):
        pass
    return 0


def run_case(one: Case, *, large: bool) -> Result:
    """Build a case and run it."""
    with tempfile.TemporaryDirectory(prefix="whystuck-hostile-") as scratch:
        folder, out = Path(scratch, "evidence"), Path(scratch, "out.json")
        folder.mkdir()
        one.build(folder, large)
        disk_mb = _size_mb(folder)
        words = [word.replace("{out}", str(out)).replace("{}", str(folder)) for word in one.command]
        with (
            Path(scratch, "stdout").open("wb") as stdout,
            Path(scratch, "stderr").open("wb") as stderr,
        ):
            started, used = time.monotonic(), _cpu_s()
            child = subprocess.Popen(
                [sys.executable, "-c", START, *words],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
            meter = Meter(child.pid)
            meter.start()
            code = meter.wait(child)
            seconds, used = time.monotonic() - started, _cpu_s() - used
            meter.is_over.set()
            meter.join()
        said = Path(scratch, "stdout").read_bytes(), Path(scratch, "stderr").read_bytes()
        _open_up(folder)
    peak_mb = meter.peak / 1e6
    problem = find_problem(code, *said, peak_mb)
    if not problem and large and used > LIMIT_S:
        problem = f"takes more than {LIMIT_S:.0f} s of CPU"
    return Result(one.name, seconds, used, peak_mb, disk_mb, code, problem)


def _size_mb(folder: Path) -> float:
    """Return how much of the disk a folder takes, without its holes."""
    said = subprocess.run(["du", "-sk", folder], check=False, capture_output=True, text=True).stdout
    return int(said.split()[0]) * 1024 / 1e6 if said else 0.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def find_problem(code: int, stdout: bytes, stderr: bytes, peak_mb: float) -> str:
    """Say what is wrong with the end of a case."""
    if code == -1:
        return f"ended: it takes more than {HANG_S} s, or {HANG_CPU_S} s of CPU"
    if code not in CODES:
        return f"code {code}: {stderr[-200:].decode(errors='replace')}"
    if b"Traceback (most recent call last)" in stderr:
        return f"a traceback: {stderr[-200:].decode(errors='replace')}"
    if b"E902" in stdout:
        return "a part of the report failed (E902)"
    if peak_mb > LIMIT_MB:
        return f"takes more than {LIMIT_MB} MB"
    return ""


def _open_up(folder: Path) -> None:
    """Let what has no modes be removed; remove what is too deep for a path."""
    subprocess.run(["chmod", "-R", "u+rwx", folder], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", folder], check=False)


def main() -> int:
    """Run the cases and print what each cost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small cases")
    parser.add_argument("--from", dest="first", default="", help="begin with the case of this name")
    parser.add_argument("--only", default="", help="cases with this text in their names")
    parser.add_argument("--every", type=int, default=1, help="one case of so many")
    options = parser.parse_args()
    compileall.compile_dir(Path(whystuck.__file__).parent, quiet=2)
    chosen = [one for one in CASES if options.only in one.name]
    if options.quick:
        # Each folder once: what reads it first reads most of it.
        chosen = list({one.build: one for one in reversed(chosen)}.values())[::-1]
    chosen = chosen[:: options.every]
    names = [one.name for one in chosen]
    chosen = chosen[names.index(options.first) if options.first else 0 :]
    results = []
    print(f"{'case':58} {'seconds':>8} {'CPU s':>6} {'MB':>6} {'disk MB':>8} {'code':>4}")
    for one in chosen:
        result = run_case(one, large=not options.quick)
        results.append(result)
        word = f"  <- {result.problem}" if result.problem else ""
        print(
            f"{result.name:58} {result.seconds:8.2f} {result.cpu_s:6.1f} "
            f"{result.peak_mb:6.0f} {result.disk_mb:8.1f} {result.code:4}{word}",
            flush=True,
        )
    if results:
        slowest = max(results, key=lambda one: one.cpu_s)
        largest = max(results, key=lambda one: one.peak_mb)
        print(
            f"\n{len(results)} cases; slowest: {slowest.name}, {slowest.cpu_s:.1f} s of CPU; "
            f"most memory: {largest.name}, {largest.peak_mb:.0f} MB"
        )
    return int(any(one.problem for one in results))


if __name__ == "__main__":
    sys.exit(main())
