"""What reading and judging flight-recorder dumps costs, against torchfrtrace on the same files.

Makes the dumps of a job of each size, then runs `whystuck diagnose`, torchfrtrace and the floor
(the restricted unpickler alone, in as many processes) side by side, and prints seconds of wall
and CPU, the peak of memory, and the ratios. Exits with 1 when a bar is missed, unless ``--quick``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fr_dumps import Layout, write_dumps

WHYSTUCK = [sys.executable, "-m", "whystuck", "diagnose"]
TORCHFRTRACE = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
TORCHFRTRACE_OPTIONS = ["-p", "nccl_trace_rank_"]
FLOOR = [sys.executable, str(Path(__file__).with_name("fr_floor.py"))]
MIB = 1024 * 1024
SAMPLE_S = 0.05
MIN_WALL_RATIO = 15
MIN_CPU_RATIO = 20
MIN_MEMORY_RATIO = 5
MAX_FLOOR_RATIO = 2.5
# Smaller jobs take little more than the start of Python and its imports.
JUDGED_WORLD = 1024
LARGE_WORLD = 10_240
MAX_LARGE_S = 90
MAX_LARGE_BYTES = 4 * 1024 * MIB


@dataclass(frozen=True)
class Cost:
    """What one command took; memory is the peak of all its processes, shared pages split."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int


def measure(command: list[str]) -> Cost:
    """Run a command and watch it."""
    before = os.times()
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    peak = 0
    try:
        while process.poll() is None:
            peak = max(peak, _count_memory(process.pid))
            time.sleep(SAMPLE_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    wall_s = time.perf_counter() - start
    after = os.times()
    cpu_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Cost(wall_s, cpu_s, peak, process.returncode)


def _count_memory(pid: int) -> int:
    try:
        parent = psutil.Process(pid)
        return sum(_count_own(one) for one in (parent, *parent.children(recursive=True)))
    except psutil.Error:
        return 0


def _count_own(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0


def compare(folder: Path, layout: Layout, *, judge: bool) -> list[str]:
    """Run all three on the dumps of one job, print a line for each, and return what is too slow."""
    entries = write_dumps(folder, layout)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{layout.world} ranks, {entries} entries, {size / MIB:.0f} MB")
    ours = measure([*WHYSTUCK, str(folder)])
    theirs = measure([*TORCHFRTRACE, str(folder), *TORCHFRTRACE_OPTIONS])
    floor = measure([*FLOOR, str(folder)])
    for name, cost in (("whystuck", ours), ("torchfrtrace", theirs), ("floor", floor)):
        print(
            f"  {name:13} {cost.wall_s:8.2f} s wall {cost.cpu_s:8.2f} s CPU "
            f"{cost.peak_bytes / MIB:8.0f} MB"
        )
    wall, cpu = theirs.wall_s / ours.wall_s, theirs.cpu_s / ours.cpu_s
    memory, above = theirs.peak_bytes / max(1, ours.peak_bytes), ours.wall_s / floor.wall_s
    print(
        f"  ratio: {wall:.1f}x wall, {cpu:.1f}x CPU, {memory:.1f}x memory; "
        f"{above:.2f} times the floor"
    )
    bars: list[tuple[bool, str]] = [
        (ours.exit_code == 1, f"whystuck ended with {ours.exit_code}, 1 was expected"),
        (not judge or wall >= MIN_WALL_RATIO, f"less than {MIN_WALL_RATIO}x wall"),
        (not judge or cpu >= MIN_CPU_RATIO, f"less than {MIN_CPU_RATIO}x CPU"),
        (not judge or memory >= MIN_MEMORY_RATIO, f"less than {MIN_MEMORY_RATIO}x memory"),
        (not judge or above <= MAX_FLOOR_RATIO, f"more than {MAX_FLOOR_RATIO} times the floor"),
    ]
    return [f"{layout.world} ranks: {text}" for met, text in bars if not met]


def run_large(folder: Path) -> list[str]:
    """Run whystuck alone on the dumps of a very large job."""
    entries = write_dumps(folder, Layout(LARGE_WORLD))
    ours = measure([*WHYSTUCK, str(folder)])
    print(
        f"{LARGE_WORLD} ranks, {entries} entries\n"
        f"  whystuck      {ours.wall_s:8.2f} s wall {ours.cpu_s:8.2f} s CPU "
        f"{ours.peak_bytes / MIB:8.0f} MB"
    )
    bars = [
        (ours.exit_code == 1, f"whystuck ended with {ours.exit_code}, 1 was expected"),
        (ours.wall_s <= MAX_LARGE_S, f"more than {MAX_LARGE_S} s"),
        (ours.peak_bytes <= MAX_LARGE_BYTES, f"more than {MAX_LARGE_BYTES // MIB} MB"),
    ]
    return [f"{LARGE_WORLD} ranks: {text}" for met, text in bars if not met]


def fit_growth(where: Path, sizes: list[tuple[str, Layout]]) -> list[str]:
    """Print how the CPU time of whystuck grows with the size, as the exponent of a power."""
    points = []
    for name, layout in sizes:
        folder = where / name
        entries = write_dumps(folder, layout)
        points.append((entries, measure([*WHYSTUCK, str(folder)]).cpu_s))
        shutil.rmtree(folder)
    write_dumps(where / "start", Layout(32, steps=1))
    start = measure([*WHYSTUCK, str(where / "start")]).cpu_s
    counts = np.log([count for count, _seconds in points])
    seconds = np.log([max(0.01, seconds - start) for _count, seconds in points])
    exponent = float(np.polyfit(counts, seconds, 1)[0])
    listed = ", ".join(f"{count} entries {seconds:.2f} s" for count, seconds in points)
    print(f"growth: exponent {exponent:.2f} ({listed}; start of {start:.2f} s taken off)")
    return []


def _in_folder(work: Callable[[Path], list[str]]) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="whystuck-bench-"))
    try:
        return work(folder / "dumps")
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="256,1024", help="sizes of jobs to compare on")
    parser.add_argument("--large", action="store_true", help=f"{LARGE_WORLD} ranks, ours alone")
    parser.add_argument("--growth", action="store_true", help="how the time grows with the size")
    parser.add_argument("--quick", action="store_true", help="a small job, no bars on time")
    options = parser.parse_args()
    missed: list[str] = []
    if options.quick:
        missed += _in_folder(lambda folder: compare(folder, Layout(64, steps=10), judge=False))
    elif not options.large and not options.growth:
        for world in map(int, options.ranks.split(",")):
            judge = world >= JUDGED_WORLD
            missed += _in_folder(partial(compare, layout=Layout(world), judge=judge))
    if options.growth:
        ranks = [(f"ranks-{world}", Layout(world)) for world in (256, 512, 1024)]
        entries = [(f"steps-{steps}", Layout(64, steps=steps)) for steps in (57, 228, 570)]
        for sizes in (ranks, entries):
            _in_folder(partial(fit_growth, sizes=sizes))
    if options.large:
        missed += _in_folder(run_large)
    for text in missed:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
