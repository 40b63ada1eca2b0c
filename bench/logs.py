"""How fast known lines are found in logs, against one alternation of all patterns.

The logs are made: training output, warnings and NCCL INFO of many ranks, and one known line in a
thousand lines of it at most. Two tables are printed: the search alone, in CPU time of one core; and
all that whystuck makes of a folder with a log of each rank, as one process a core reads it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.logs.healthy import OUTPUTS, Moment

from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.logs.search.engines import Engine
from whystuck.parse.logs.search.scan import LogPatterns, LogScanner
from whystuck.parse.logs.signatures import load_signatures
from whystuck.read.log_files import LogPath, read_logs

BLOCK = 1 << 20
ROUNDS = 3
# The alternation is slow: it gets this share of the log.
PLAIN_SHARE = 50
FAULTS = (
    "[rank{r}]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "node{n}:22:33 [{l}] NCCL WARN socketProgress: Connection closed by remote peer node2<45678>",
    "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "OSError: [Errno 28] No space left on device",
)
MEGATRON = (
    "[default{l}]:[rank{r}] [2026-11-21 12:{m:02}:{s:02}] iteration {i:8d}/  500000 | consumed "
    "samples: {c:12d} | elapsed time per iteration (ms): {f:.1f} | learning rate: 1.200E-04 | "
    "global batch size: 512 | lm loss: {g:.6E} | grad norm: {g:.3f} | skipped iterations: 0 | "
    "number of nan iterations: 0 |"
)
CHANNEL = "node{n}:{p}:{c} [{l}] NCCL INFO Channel {m:02}/0 : {r}[{l}] -> {s}[{l}] via P2P/IPC/read"
CARDS = (
    "node{n}:{p}:{c} [{l}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB "
    "eth0:10.0.{m}.{s}<0>"
)
WARNING = (
    "/usr/lib/python3.11/site-packages/torch/utils/checkpoint.py:{p}: UserWarning: "
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly."
)
SAVED = (
    "INFO:megatron.core:2026-11-21 12:{m:02}:{s:02},{l}00 rank {r}: saved checkpoint of step {i} "
    "to /ckpt/step-{i} in {g:.2f} s, {c} bytes, 0 errors"
)
BAR = "Epoch {l}:  {m}%|####6     | {i}/500000 [01:02<{m:02}:{s:02},  {g:.2f}it/s, loss={g:.4f}]"
HEALTHY = ((60, MEGATRON), (15, CHANNEL), (5, CARDS), (5, WARNING), (5, SAVED), (10, BAR))


def write_log(path: Path, size: int, *, faults: bool) -> None:
    """Write a log of about ``size`` bytes."""
    rng = random.Random(7)
    weights, forms = zip(*HEALTHY, strict=True)
    with path.open("w") as stream:
        while stream.tell() < size:
            for form in rng.choices(forms, weights, k=1000):
                stream.write(fill(form, rng))
            if faults:
                stream.write(fill(rng.choice(FAULTS), rng))


def fill(form: str, rng: random.Random) -> str:
    """Put made-up values into a line."""
    rank = rng.randrange(1024)
    return (
        form.format(
            r=rank,
            l=rank % 8,
            n=rank // 8,
            m=rng.randrange(60),
            s=rng.randrange(60),
            i=rng.randrange(500_000),
            c=rng.randrange(10**9),
            p=rng.randrange(100_000),
            f=rng.random() * 10_000,
            g=rng.random() * 10,
        )
        + "\n"
    )


def blocks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def make_engine(engine: Engine) -> Callable[[Path], int]:
    """Return what searches a log with an engine and counts the hits."""
    patterns = LogPatterns(load_signatures(), engine)

    def count_hits(path: Path) -> int:
        scanner = LogScanner(patterns)
        return sum(len(scanner.feed(block)) for block in blocks_of(path)) + len(scanner.finish())

    return count_hits


def make_alternation() -> Callable[[Path], int]:
    """Return what searches line by line with one alternation and counts the lines."""
    bodies = [re.sub(r"\(\?P<\w+>", "(?:", item.regex) for item in load_signatures()]
    pattern = re.compile("|".join(f"(?:{body})" for body in bodies).encode())

    def count_lines(path: Path) -> int:
        with path.open("rb") as stream:
            return sum(pattern.search(line) is not None for line in stream)

    return count_lines


METHODS: dict[str, Callable[[], Callable[[Path], int]]] = {
    "alternation": make_alternation,
    "numpy": lambda: make_engine("numpy"),
    "hyperscan": lambda: make_engine("hyperscan"),
}


def measure(method: str, path: Path) -> None:
    """Print seconds of CPU, hits and peak memory in MB; in a process of its own.

    The tables are read before, and the patterns made ready: once for any number of logs.
    """
    search = METHODS[method]()
    start = time.process_time()
    hits = search(path)
    seconds = time.process_time() - start
    print(seconds, hits, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def ask(method: str, path: Path) -> tuple[float, int, float]:
    """Measure in a fresh process, the best of some rounds."""
    rounds = []
    for _ in range(1 if method == "alternation" else ROUNDS):
        command = [sys.executable, __file__, "--measure", method, str(path)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        rounds.append((float(words[0]), int(words[1]), float(words[2])))
    return min(rounds)


def compare(folder: Path, megabytes: int) -> None:
    """Print one row for each engine and kind of log."""
    print("log            method        MB/s of a core   ratio      hits   memory MB")
    for kind, faults in (("healthy", False), ("with faults", True)):
        long, short = folder / f"{kind}.log", folder / f"{kind}-short.log"
        write_log(long, megabytes * 1_000_000, faults=faults)
        write_log(short, megabytes * 1_000_000 // PLAIN_SHARE, faults=faults)
        plain = 0.0
        for method in METHODS:
            if method == "hyperscan" and not find_spec("hyperscan"):
                print(f"{kind:<14} {method:<12} not installed (pip install 'whystuck[fast]')")
                continue
            path = short if method == "alternation" else long
            seconds, hits, memory = ask(method, path)
            speed = path.stat().st_size / 1e6 / seconds
            plain = plain or speed
            print(
                f"{kind:<14} {method:<12} {speed:>15.1f} {speed / plain:>7.0f} {hits:>9}"
                f" {memory:>11.0f}"
            )


OUTPUT_NAMES = ("steps", "logging", "megatron", "huggingface", "deepspeed", "titan", "lightning")
PIECE_BYTES = 1 << 20
TRACEBACK = """\
[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/app/train.py", line 212, in <module>
[rank{r}]:     main()
[rank{r}]: RuntimeError: CUDA error: uncorrectable ECC error encountered
"""


def write_job(folder: Path, size: int, ranks: int) -> None:
    """Write a log of each rank, of ``size`` bytes together; the last rank fails."""
    for rank in range(ranks):
        piece = make_piece(rank, ranks)
        with (folder / f"rank-{rank}.log").open("wb") as stream:
            left = size // ranks
            while left > 0:
                left -= stream.write(piece[:left])
            if rank == ranks - 1:
                stream.write(b"\n" + TRACEBACK.format(r=rank).encode())


def make_piece(rank: int, ranks: int) -> bytes:
    """Make healthy output of a rank."""
    rng = random.Random(rank % 16)
    output = OUTPUTS[OUTPUT_NAMES[rank % len(OUTPUT_NAMES)]]
    start = datetime(2026, 3, 4, 10)  # noqa: DTZ001 - as logs have it
    lines, size, step = [], 0, 0
    while size < PIECE_BYTES // 8:
        step += 1
        time_ = start + timedelta(seconds=step)
        moment = Moment(rank, rank % 8, f"n{rank // 8}", ranks, time_, step, rng)
        lines.append(output(moment) + "\n")
        size += len(lines[-1])
    return ("".join(lines) * 8).encode()


def measure_job(engine: Engine, folder: Path) -> None:
    """Print seconds, seconds of CPU, events and exceptions, and MB of memory of all processes."""
    paths = [LogPath(path, path.name) for path in sorted(folder.iterdir())]
    start = time.perf_counter()
    table = read_logs(paths, LogTables(engine=engine)).table
    seconds = time.perf_counter() - start
    used = os.times()
    cpu = used.user + used.system + used.children_user + used.children_system
    own, child = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    cores = len(os.sched_getaffinity(0))
    found = len(table.logs.events) + len(table.exceptions)
    # What processes share is counted in each of them.
    print(seconds, cpu, found, own + child * cores)


def compare_jobs(folder: Path, megabytes: int, ranks: int) -> None:
    """Print one row for each engine: all that is made of a folder of logs."""
    write_job(folder, megabytes * 1_000_000, ranks)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"\n{size / 1000:.2f} GB in {ranks} files, {len(os.sched_getaffinity(0))} cores")
    print("method          seconds   CPU s   MB/s of a core   found   memory MB, all")
    for engine in ("hyperscan", "numpy"):
        if engine == "hyperscan" and not find_spec("hyperscan"):
            continue
        command = [sys.executable, __file__, "--measure-job", engine, str(folder)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        seconds, cpu, found, memory = (float(word) for word in words)
        print(
            f"{engine:<12} {seconds:>10.1f} {cpu:>7.1f} {size / cpu:>16.1f} {found:>7.0f}"
            f" {memory:>16.0f}"
        )


def main() -> None:
    """Make the logs and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="size of the log")
    parser.add_argument("--job-megabytes", type=int, default=1000, help="size of the folder")
    parser.add_argument("--ranks", type=int, default=128, help="files in the folder")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure-job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]))
        return
    if options.measure_job:
        measure_job(options.measure_job[0], Path(options.measure_job[1]))
        return
    with TemporaryDirectory() as folder:
        compare(Path(folder), options.megabytes)
    with TemporaryDirectory() as folder:
        compare_jobs(Path(folder), options.job_megabytes, options.ranks)


if __name__ == "__main__":
    main()
