"""Many traces through the local engine and through Dask, with a worker killed on the way.

Every rank has one trace of some megabytes of JSON, packed: the same ops and kernels, and
collectives of its own, with a clock and a lateness of its own. The tables of both engines must be
the same, bit for bit, and no process may take more memory than is stated.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from whystuck.pipeline import list_public_tables
from whystuck.tracing.metrics import CROSS_METRICS, METRICS

# What one process may take: a worker for one trace of 20 MB, and whoever reduces 1,024 ranks.
WORKER_BYTES = 400 << 20
REDUCE_BYTES = 900 << 20
_LATE_RANK = 5
_STEPS = 4
_COLLECTIVES = 64
_WHYSTUCK = [sys.executable, "-m", "whystuck"]
# One table with a row for each launch is enough to show that rows are not held.
_LEFT_OUT = ("critical_path",)


def make_set(folder: Path, ranks: int, megabytes: float, seed: int = 7) -> int:
    """Write the traces of a job, and return the bytes of their JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    bulk = _make_bulk(int(megabytes * 1e6), random.Random(seed))
    packed = gzip.compress(bulk, 6)
    total = 0
    for rank in range(ranks):
        head = (
            '{"schemaVersion": 1,\n'
            f'"deviceProperties": [{{"id": {rank % 8}, "name": "synthetic"}}],\n'
            f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {ranks}}},\n'
            '"traceEvents": [\n'
        ).encode()
        tail = _make_collectives(rank, ranks, random.Random(seed * 100_003 + rank))
        path = folder / f"rank{rank}.pt.trace.json.gz"
        # Members of gzip can follow each other: what all ranks share is packed once.
        path.write_bytes(gzip.compress(head, 1) + packed + gzip.compress(tail, 6))
        total += len(head) + len(bulk) + len(tail)
    return total


def _event(category: str, name: str, start_us: float, us: float, tid: int, **args: object) -> bytes:
    device = "stream" in args
    shape = {
        "ph": "X", "cat": category, "name": name, "pid": 0 if device else 4242, "tid": tid,
        "ts": round(start_us, 3), "dur": round(us, 3), "args": args,
    }  # fmt: skip
    return json.dumps(shape, indent=1).encode()


def _make_bulk(size: int, chance: random.Random) -> bytes:
    """Make ops, launches and kernels of all steps, up to a size."""
    kernels = [f"void gemm_kernel_{number}<float, {number * 16}>(Params)" for number in range(60)]
    ops = ["aten::mm", "aten::linear", "aten::add_", "aten::layer_norm", "aten::gelu"]
    # One step is made and moved: making all of them takes minutes.
    step_bytes = size // _STEPS
    parts: list[bytes] = []
    made, at_us, correlation = 0, 0.0, 1
    device_us = 0.0
    while made < step_bytes:
        us = chance.uniform(4, 60)
        device_us = max(device_us + chance.uniform(0.5, 2), at_us + 10)
        launch = {"correlation": correlation, "External id": correlation}
        three = (
            _event("cpu_op", chance.choice(ops), at_us, 9, 4242, **{"External id": correlation}),
            _event("cuda_runtime", "cudaLaunchKernel", at_us + 2, 5, 4242, cbid=211, **launch),
            _event(
                "kernel", chance.choice(kernels), device_us, us, 7, device=0, context=1, stream=7,
                grid=[64, 1, 1], block=[256, 1, 1], **{"registers per thread": 64}, **launch,
            ),
        )  # fmt: skip
        parts += three
        made += sum(map(len, three)) + 6
        device_us += us
        at_us += chance.uniform(10, 40)
        correlation += 1
    length_us = max(at_us, device_us) + 500
    steps = [_move(b",\n".join(parts), step, length_us, correlation) for step in range(_STEPS)]
    marks = [
        _event("user_annotation", f"ProfilerStep#{step}", step * length_us, length_us - 50, 4242)
        for step in range(_STEPS + 1)
    ]
    return b",\n".join([*steps, *marks]) + b",\n"


_TIME = re.compile(rb'"ts": ([0-9.]+)')
_LINK = re.compile(rb'"(correlation|External id)": (\d+)')


def _move(step: bytes, number: int, length_us: float, links: int) -> bytes:
    by_us = number * length_us
    moved = _TIME.sub(lambda found: b'"ts": %.3f' % (float(found[1]) + by_us), step)
    return _LINK.sub(lambda found: b'"%s": %d' % (found[1], int(found[2]) + number * links), moved)


def _make_collectives(rank: int, ranks: int, chance: random.Random) -> bytes:
    """Make the collectives of a rank; one rank comes late to all, and clocks differ."""
    events = []
    clock_us = chance.uniform(-500, 500)
    for number in range(_STEPS * _COLLECTIVES):
        ready_us = 3_000 + number * 2_000
        own_us = ready_us + chance.uniform(0, 40) + (400 if rank == _LATE_RANK % ranks else 0)
        end_us = ready_us + 440 + 300
        link = 10_000_000 + number
        events.append(
            _event("cuda_runtime", "cudaLaunchKernelExC", own_us - 30 + clock_us, 6, 4242,
                   correlation=link)
        )  # fmt: skip
        events.append(
            _event(
                "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
                own_us + clock_us, end_us - own_us, 20, device=0, stream=20, correlation=link,
                **{
                    "Collective name": "allreduce", "In msg nelems": 1_048_576,
                    "Out msg nelems": 1_048_576, "Group size": ranks, "dtype": "Float",
                    "Process Group Name": "0", "Process Group Description": "default_pg",
                    "Seq": number,
                },
            )
        )  # fmt: skip
    return b",\n".join(events) + b'\n], "traceName": "synthetic"}'


@dataclass
class Watched:
    """How long a command took, and the most memory that each of its processes had."""

    code: int
    wall_s: float
    own_bytes: int
    worker_bytes: int


def watch(command: list[str], log: Path, workers: Sequence[psutil.Popen] = ()) -> Watched:
    """Run a command, and look at the memory of it, of its children and of those of workers."""
    started = time.monotonic()
    with log.open("wb") as stream:
        process = psutil.Popen(command, stdout=stream, stderr=stream)
        own, worker = 0, 0
        while process.poll() is None:
            own = max(own, _measure(process))
            children = [child for one in (process, *workers) for child in _children(one)]
            worker = max([worker, *map(_measure, children)])
            time.sleep(0.05)
    return Watched(process.returncode, time.monotonic() - started, own, worker)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return found


def _measure(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


@contextmanager
def cluster(workers: int, scratch: Path) -> Iterator[tuple[str, list[psutil.Popen]]]:
    """A Dask scheduler and workers, each a process of its own; a lost worker comes again."""
    ready = scratch / "scheduler.json"
    quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "error", "OMP_NUM_THREADS": "1"}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    started = [
        psutil.Popen(
            [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
             "--scheduler-file", str(ready)],
            env=quiet, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    ]  # fmt: skip
    try:
        while not ready.exists() or not ready.read_text().strip():
            time.sleep(0.05)
        address = json.loads(ready.read_text())["address"]
        started += [
            psutil.Popen(
                [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1",
                 "--nworkers", "1", "--memory-limit", "2GB", "--no-dashboard",
                 "--local-directory", str(scratch / f"worker-{number}")],
                env=quiet, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for number in range(workers)
        ]  # fmt: skip
        yield address.removeprefix("tcp://"), started[1:]
    finally:
        for process in reversed(started):
            for child in _children(process):
                child.kill()
            process.kill()
            process.wait()


class Killer(threading.Thread):
    """Kills the process that works for one of the workers, once some partials are there."""

    def __init__(self, worker: psutil.Popen, partials: Path, after: int) -> None:
        super().__init__(daemon=True)
        self.worker, self.partials, self.after = worker, partials, after
        self.killed = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            if len(list(self.partials.glob("*.wspart"))) < self.after:
                continue
            # The nanny starts it again.
            for child in _children(self.worker):
                if "spawn_main" in " ".join(child.cmdline()):
                    child.send_signal(signal.SIGKILL)
                    self.killed = child.pid
                    return


def digest(folder: Path) -> dict[str, str]:
    """Sum up the files of a folder."""
    return {
        path.name: hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*"))
    }


def main() -> int:
    """Make the set, run both engines, and say whether all holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--folder", type=Path, help="where to keep the traces; else they go again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whystuck-bench-") as scratch:
        return measure(options.folder or Path(scratch) / "traces", Path(scratch), options)


def measure(traces: Path, scratch: Path, options: argparse.Namespace) -> int:
    """Run all, print figures, and return 0 when all holds."""
    if not traces.exists():
        raw = make_set(traces, options.ranks, options.megabytes)
        print(f"made {options.ranks} traces, {raw / 1e9:.1f} GB of JSON")
    packed = sum(path.stat().st_size for path in traces.iterdir())
    print(f"on disk {packed / 1e9:.2f} GB")
    local = watch(_command(scratch, "local", traces), scratch / "local.log")
    _print("local", local)
    partials = scratch / "partials"
    partials.mkdir()
    with cluster(2, scratch) as (address, workers):
        killer = Killer(workers[0], partials, after=max(2, options.ranks // 8))
        killer.start()
        on_cluster = ["--engine", f"dask://{address}", "--partials", str(partials)]
        command = _command(scratch, "dask", traces, *on_cluster)
        dask = watch(command, scratch / "dask.log", workers)
        killer.done.set()
    _print("dask", dask)
    again = watch(_command(scratch, "again", partials), scratch / "again.log")
    _print("partials", again)
    checks = {
        "all ended well": [local.code, dask.code, again.code] == [0, 0, 0],
        "a worker was killed": bool(killer.killed),
        "all ranks are there": _count_ranks(scratch / "dask.json") == options.ranks,
        "dask equals local": digest(scratch / "dask") == digest(scratch / "local"),
        "partials equal local": digest(scratch / "again") == digest(scratch / "local"),
        f"no reduce above {REDUCE_BYTES >> 20} MB": max(
            local.own_bytes, dask.own_bytes, again.own_bytes
        )
        <= REDUCE_BYTES,
        f"no worker above {WORKER_BYTES >> 20} MB": max(local.worker_bytes, dask.worker_bytes)
        <= WORKER_BYTES,
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
    if not all(checks.values()):
        for name in ("local", "dask", "again"):
            print((scratch / f"{name}.log").read_text()[-2000:])
    return 0 if all(checks.values()) else 1


def _command(scratch: Path, name: str, source: Path, *more: str) -> list[str]:
    """The command that reads a set, and writes its tables and its report."""
    made = {one.name for one in METRICS if one.is_default}
    crossed = [name for one in CROSS_METRICS if made.issuperset(one.needs) for name in one.names]
    chosen = sorted(made | {*list_public_tables(), *crossed} - {*_LEFT_OUT})
    tables = [word for name in chosen for word in ("--table", name)]
    return [
        *_WHYSTUCK, "trace", "analyze", str(source), "--tables", str(scratch / name), *tables,
        "--format", "json", "-o", str(scratch / f"{name}.json"), "--fail-on", "never",
        *more,
    ]  # fmt: skip


def _count_ranks(report: Path) -> int:
    if not report.exists():
        return 0
    return int(json.loads(report.read_text())["coverage"]["ranks_seen"])


def _print(name: str, watched: Watched) -> None:
    print(
        f"{name:9} {watched.wall_s:7.1f} s   reduce {watched.own_bytes >> 20:5} MB   "
        f"worker {watched.worker_bytes >> 20:5} MB   exit {watched.code}"
    )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
