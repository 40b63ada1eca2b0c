"""How fast traces are read, against HTA and against the least that it can take.

Real traces are repeated until they are large. Every measurement is made in a process of its own;
seconds are those of CPU, summed over its processes, imports not counted, and MB are the largest sum
of the memory of its processes at one time, shared pages counted once. The floor is
`trace_floor.py`. HTA is installed in an environment of its own, `.venv-peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.trace_floor import read_columns
from bench.trace_metrics import compare_files
from bench.trace_sets import find_traces, write_minimal, write_repeated

from whystuck.evidence.traces.events import Detail
from whystuck.read.traces.files import read_trace_file

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers"
PEER = "traceinsight==0.6.1"
MB = 1_000_000
SAMPLE_SECONDS = 0.05
# The bound on memory: so much, and so many bytes an event.
BASE_MB, BYTES_AN_EVENT = 150, 100


@dataclass(frozen=True)
class TraceSet:
    """Traces to measure with; `has_peer` when HTA shall read them too."""

    name: str
    files: tuple[Path, ...]
    has_peer: bool = True


@dataclass(frozen=True)
class Cost:
    """What a measurement took."""

    seconds: float
    megabytes: float
    events: int


# ------------------------------------------------------------------------------------ the sets


def make_sets(folder: Path, chosen: str, *, quick: bool) -> list[TraceSet]:
    """Write the traces: those of the ranks of a job, large ones, and one of many events.

    One large trace has profiler steps, as most have, and one has Python frames, but no steps. Only
    sets whose names have `chosen` in them are made.
    """
    real = find_traces()
    halves = [real / "hta_sampled_2rank" / f"rank-{rank}.json.gz" for rank in range(2)]
    ranks, size, large, events = (2, 15, 30, 10**5) if quick else (8, 140, 1000, 10**7)
    files = tuple(folder / f"rank{rank}.json" for rank in range(ranks))
    steps, frames, many = (folder / f"{name}.json" for name in ("steps", "frames", "many"))
    sets = [
        TraceSet(f"{ranks} x {size} MB", files),
        TraceSet(f"{large} MB, steps", (steps,)),
        TraceSet(f"{large} MB, frames", (frames,)),
        TraceSet(f"{events:,} events", (many,), has_peer=False),
    ]
    made = [one for one in sets if chosen in one.name]
    wanted = {file for one in made for file in one.files}
    for rank, file in enumerate(files):
        if file in wanted:
            write_repeated(halves[rank % 2], file, size * MB, rank)
    if steps in wanted:
        write_repeated(halves[0], steps, large * MB)
    if frames in wanted:
        write_repeated(real / "tl_b200_rank0of8" / "eager_trace.json.gz", frames, large * MB)
    if many in wanted:
        write_minimal(many, events)
    return made


# ------------------------------------------------------------------------- how it is measured


def run(command: Sequence[str | Path]) -> Cost:
    """Run a command that prints its seconds and events as JSON, and watch its memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = [0.0]
    is_done = threading.Event()
    watch = threading.Thread(target=watch_memory, args=(process.pid, peak, is_done))
    watch.start()
    output, _ = process.communicate()
    is_done.set()
    watch.join()
    if process.returncode:
        raise SystemExit(
            f"error: {' '.join(map(str, command[:4]))} ended with {process.returncode}"
        )
    said = json.loads(output.splitlines()[-1])
    return Cost(said["seconds"], peak[0], int(said["events"]))


def watch_memory(pid: int, peak: list[float], is_done: threading.Event) -> None:
    """Keep the largest sum of the memory of a process and its children, in MB."""
    while not is_done.wait(SAMPLE_SECONDS):
        try:
            root = psutil.Process(pid)
            total = sum(map(measure_memory, [root, *root.children(recursive=True)]))
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total / MB)


def measure_memory(process: psutil.Process) -> int:
    """Return the memory of a process, its share of what others have too."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line[:4] == "Pss:")


def cpu_seconds() -> float:
    """Seconds of CPU of this process and those that it has waited for."""
    uses = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure(name: str, files: Sequence[Path]) -> None:
    """Print what one way to read takes, in as many processes as there are cores."""
    before = cpu_seconds()
    workers = min(os.cpu_count() or 1, len(files))
    if workers == 1:
        events = sum(map(READERS[name], files))
    else:
        with get_context("fork").Pool(workers) as pool:
            events = sum(pool.imap_unordered(READERS[name], files))
            pool.close()
            pool.join()
    print(json.dumps({"seconds": cpu_seconds() - before, "events": events}))


def read_lean(path: Path) -> int:
    return len(read_trace_file(path, detail=Detail.LEAN).events)


def read_all(path: Path) -> int:
    return len(read_trace_file(path, detail=Detail.ALL).events)


READERS: dict[str, Callable[[Path], int]] = {
    "lean": read_lean,
    "all": read_all,
    "floor": read_columns,
}


def ask(name: str, files: Sequence[Path], rounds: int) -> Cost:
    """Measure a way to read in fresh processes: the best of some rounds."""
    command: list[str | Path] = [sys.executable, __file__, "--measure", name, *files]
    costs = [run(command) for _ in range(rounds)]
    return min(costs, key=lambda cost: cost.seconds)


def ask_peer(part: str, files: Sequence[Path]) -> Cost:
    """Measure a part of HTA in a fresh process of its environment."""
    return run([PEERS / "bin" / "python", ROOT / "bench" / "trace_peer.py", part, *files])


def install_peer() -> None:
    """Make the environment of HTA where it is not there."""
    if (PEERS / "bin" / "hta-is-there").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
    subprocess.run([PEERS / "bin" / "python", "-m", "pip", "install", "-q", PEER], check=True)
    (PEERS / "bin" / "hta-is-there").touch()


# ------------------------------------------------------------------------------------ the parts


def compare_load(sets: Sequence[TraceSet], rounds: int, *, has_peer: bool) -> None:
    """Print what it takes to have the traces in memory.

    HTA holds the traces of all ranks; whystuck holds one a process, and keeps what it measured.
    """
    print("load              events      MB/s  seconds   floor  of it   all args      HTA  ratio")
    rows = []
    for one in sets:
        lean, floor, everything = (
            ask(name, one.files, rounds) for name in ("lean", "floor", "all")
        )
        peer = ask_peer("load", one.files) if has_peer and one.has_peer else None
        rows.append((one, lean, peer))
        size = sum(path.stat().st_size for path in one.files) / MB
        print(
            f"{one.name:<15} {lean.events:>8,} {size / lean.seconds:>9.0f} {lean.seconds:>8.2f}"
            f" {floor.seconds:>7.2f} {lean.seconds / floor.seconds:>5.0%}"
            f" {everything.seconds:>10.2f}"
            + (f" {peer.seconds:>8.1f} {peer.seconds / lean.seconds:>5.1f}x" if peer else ""),
            flush=True,
        )
    print("\nmemory                MB   bytes an event over 150 MB      HTA MB  ratio")
    for one, lean, peer in rows:
        # The pool holds one trace a process.
        workers = min(os.cpu_count() or 1, len(one.files))
        held = lean.events * workers / len(one.files)
        over = max(lean.megabytes - BASE_MB * workers, 0) * MB / held
        print(
            f"{one.name:<15} {lean.megabytes:>8.0f} {over:>15.0f} of at most {BYTES_AN_EVENT}"
            + (
                f" {peer.megabytes:>12.0f} {peer.megabytes / lean.megabytes:>5.1f}x" if peer else ""
            ),
        )


def compare_metrics(sets: Sequence[TraceSet], rounds: int, *, has_peer: bool) -> None:
    """Print what metrics take once the traces are in memory; once, as that is long for HTA."""
    del rounds
    for one in sets:
        peer = PEERS / "bin" / "python" if has_peer and one.has_peer else None
        compare_files(one.name, one.files, peer)


PARTS: dict[str, Callable[..., None]] = {"load": compare_load, "metrics": compare_metrics}


def main() -> None:
    """Make the traces and print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small traces, and no peer")
    parser.add_argument("--part", choices=PARTS, action="append", help="what to measure")
    parser.add_argument("--set", dest="chosen", default="", help="only sets with this in the name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, *files = options.measure
        measure(name, [Path(file) for file in files])
        return
    if not options.quick:
        install_peer()
    with TemporaryDirectory(prefix="whystuck-traces-") as folder:
        sets = make_sets(Path(folder), options.chosen, quick=options.quick)
        for part in options.part or PARTS:
            PARTS[part](sets, options.rounds, has_peer=not options.quick)


if __name__ == "__main__":
    main()
