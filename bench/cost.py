"""What a job pays for whystuck with everything on: time and CPU of its steps, and its start.

    python bench/cost.py [--quick] [--part steps|waiting|many-ops|job|start]

Exits with 1 when a bar is missed, unless ``--quick``.

steps: a DDP job under ``whystuck run``, whose recording of ops is switched on and off in pairs of
blocks, in an order drawn by seed. Beside it a null run: the same pairs, in which nothing is
switched. Only where the interval of the null run contains 0 does the other one tell anything.

waiting: the same flips where forward and backward wait for 50 ms a step, which tells a tenth of a
percent; real work on a shared machine does not.

many-ops: the same flips where a step is short and has seven ops, for which there is no bar.

job: the CPU time of all processes of a job, bare and under ``whystuck run`` in turns, between the
first and the last step, for the same steps: launcher, ranks, and all that is ours.

start: from the call to the first line of the command, bare and under ``whystuck run`` in turns.

Intervals are of the mean of the middle half of pairs, by a bootstrap over runs of neighbouring
pairs: what slows a shared machine down lasts longer than one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

MAX_STEP_SHARE, MAX_CPU_SHARE, MAX_JOB_SHARE, MAX_START_S = 0.01, 0.015, 0.015, 0.5
TOKEN = "WHYSTUCK_BENCH_TOKEN"
# Width and number of layers, rows of a batch, MB of a bucket of DDP, None for its default, and ms
# that forward and backward wait.
Model = tuple[int, int, int, int | None, int]
USUAL: Model = (1024, 6, 256, None, 0)
# Seven ops in a step with 65 ms of work: far more than jobs have, to see what an op costs.
MANY_OPS: Model = (384, 12, 384, 1, 0)
# What the memory of a shared machine does to work, some percent, hides a tenth of a percent: here
# the work is waited for.
WAITING: Model = (64, 4, 16, None, 50)
RUN_OF_PAIRS, RESAMPLES = 8, 4000
Values = NDArray[np.float64]

MODEL = """
import itertools, json, os, random, statistics, sys, time
from pathlib import Path
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
cores = sorted(os.sched_getaffinity(0))
if dist.get_world_size() <= len(cores):
    os.sched_setaffinity(0, {cores[dist.get_rank()]})
width, count, rows, bucket_mb, wait_ms = json.loads(os.environ["WHYSTUCK_BENCH_MODEL"])
layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))
model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=bucket_mb)
optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(rows, width)
if wait_ms:
    def wait(*_):
        time.sleep(wait_ms / 2e3)
    layers.register_forward_hook(wait)
    layers.register_full_backward_hook(wait)
    batch.requires_grad_()
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""

# Steps with something on and off by turns. What precedes it says how to `flip` it, by which `clock`
# steps are measured, and how many steps `warm` up; a null run flips nothing.
PAIRS = """
pairs, steps = int(sys.argv[1]), int(sys.argv[2])
is_null, chance = sys.argv[3] == "null", random.Random(7)
train(10)
found, generation = [], 100
for _ in range(pairs):
    pair = {}
    for is_on in chance.sample([True, False], 2):
        generation += 1
        flip(generation, is_on, is_null)
        train(warm)
        dist.barrier()
        begin, each = clock(), [time.perf_counter()]
        for _ in range(steps):
            train(1)
            each.append(time.perf_counter())
        dist.barrier()
        whole = time.perf_counter() - each[0]
        pair[is_on] = [whole, clock() - begin]
        pair[is_on].append(statistics.median(b - a for a, b in itertools.pairwise(each)))
    found.append([pair[False], pair[True]])
everybody = [None] * dist.get_world_size()
dist.all_gather_object(everybody, found)
if dist.get_rank() == 0:
    print("FOUND " + json.dumps(everybody), flush=True)
dist.destroy_process_group()
"""

STEPS = (
    MODEL
    + """
recorder = sys.modules["_whystuck_probe.install"]._PROBES[-1]._rank.recorder
clock, warm = time.process_time, 1
def flip(generation, is_on, is_null):
    recorder.switch(generation, on=is_on or is_null)
"""
    + PAIRS
)

JOB = (
    MODEL
    + """
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
def meet(name):
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / name).touch()
    while not (folder / (name + "-seen")).exists():
        time.sleep(0.05)
train(20)
meet("begin")
train(steps)
meet("end")
dist.destroy_process_group()
"""
)


@dataclass(frozen=True)
class Interval:
    """A mean of the middle half, and the interval that holds the true one in 95 of 100 cases."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:+.2%} [{self.low:+.2%}, {self.high:+.2%}]"


@dataclass(frozen=True)
class Changes:
    """Of the time of blocks of steps, of the middle step of each block, and of CPU time.

    ``of_step`` is CPU time as a share of the time of a step.
    """

    wall: Interval
    middle_step: Interval
    cpu: Interval
    of_step: Interval


def find_interval(change: Values) -> Interval:
    """Return the interval of the mean of the middle half of paired changes."""
    random = np.random.default_rng(1)
    length = min(RUN_OF_PAIRS, max(1, len(change) // 4))
    count = -(-len(change) // length)
    starts = random.integers(0, len(change) - length + 1, (RESAMPLES, count))
    places = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, : len(change)]
    low, high = np.quantile(mean_middle(change[places]), (0.025, 0.975))
    return Interval(float(low), float(mean_middle(change)), float(high))


def mean_middle(values: Values) -> Values:
    """Return the mean of the middle half: outliers have no part in it, and it varies less than a
    median, by a seventh where values are normal.
    """
    cut = values.shape[-1] // 4
    middle: Values = np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return middle


def call_run(folder: Path) -> list[str]:
    """Return the words that put a command under whystuck, all as it is by default."""
    return [sys.executable, "-m", "whystuck", "run", "--evidence", str(folder / "evidence"), "--"]


def call_torchrun(ranks: int) -> list[str]:
    """Return the words that start ranks."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]


def make_environment(model: Model = USUAL) -> dict[str, str]:
    """Return the variables of a job."""
    added = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    return os.environ | added | {"WHYSTUCK_BENCH_MODEL": json.dumps(model)}


# ------------------------------------------------------------------------------------- steps


def measure_flips(
    ranks: int,
    pairs: int,
    steps: int,
    kind: str,
    model: Model = USUAL,
    program: str = STEPS,
) -> Changes:
    """Return what switching something on changes."""
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(program)
        command = [*call_run(folder), *call_torchrun(ranks), "--standalone", str(script)]
        done = subprocess.run(
            [*command, str(pairs), str(steps), kind],
            env=make_environment(model),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            cwd=folder,
        )
    lines = [line for line in done.stdout.splitlines() if "FOUND " in line]
    found = json.loads(lines[0].partition("FOUND ")[2])
    # Ranks, pairs, off and on, wall and CPU; the pairs of all ranks were at the same time.
    blocks = np.array(found).mean(axis=0)
    step_ms = 1e3 * float(np.median(blocks[:, 0, 0])) / steps
    change = blocks[:, 1] / blocks[:, 0] - 1
    wall, cpu, middle = (find_interval(change[:, at]) for at in range(3))
    of_step = find_interval((blocks[:, 1, 1] - blocks[:, 0, 1]) / steps / (step_ms / 1e3))
    print(
        f"{kind:<5} {ranks} ranks, {pairs} pairs, steps of {step_ms:.1f} ms: {wall}, CPU {cpu}, "
        f"{of_step} of a step, middle step {middle}"
    )
    return Changes(wall, middle, cpu, of_step)


def is_null(found: Interval) -> bool:
    """Return whether a null run found nothing, and say so where it did."""
    if not found.low <= 0 <= found.high:
        print("the null run found what is not there: the machine is too busy")
    return found.low <= 0 <= found.high


def measure_steps(ranks: int, pairs: int, steps: int) -> bool:
    """Print what recording changes in steps; return whether that is in the bars."""
    null = measure_flips(ranks, pairs, steps, "null")
    found = measure_flips(ranks, pairs, steps, "flips")
    is_quiet = is_null(null.wall) and is_null(null.cpu)
    return is_quiet and found.wall.high <= MAX_STEP_SHARE and found.cpu.high <= MAX_CPU_SHARE


def measure_waiting(ranks: int, pairs: int, steps: int) -> bool:
    """Print the same for steps that wait; return whether that is in the bars.

    Of their own, they need next to no CPU: what is more is a share of the time of a step.
    """
    null = measure_flips(ranks, pairs, steps, "null", WAITING)
    found = measure_flips(ranks, pairs, steps, "flips", WAITING)
    is_quiet = is_null(null.wall) and is_null(null.middle_step)
    return is_quiet and found.wall.high <= MAX_STEP_SHARE and found.of_step.high <= MAX_CPU_SHARE


def measure_many_ops(ranks: int, pairs: int, steps: int) -> bool:
    """Print what recording changes in short steps of many ops, for which there is no bar."""
    print(f"DDP with buckets of {MANY_OPS[3]} MB, short steps:")
    measure_flips(ranks, pairs, steps, "flips", MANY_OPS)
    return True


# --------------------------------------------------------------------------------------- job


def measure_processes(token: str) -> Values:
    """Return the CPU seconds of all processes of a job so far, and those that are ours alone."""
    total, ours = 0.0, 0.0
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) != token:
                continue
            is_own = is_whystuck(process.cmdline())
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                used_s = int((task / "schedstat").read_text().split()[0]) / 1e9
                total += used_s
                # Threads of the probe are named so.
                ours += used_s * (is_own or (task / "comm").read_text().startswith("whystuck"))
        except (OSError, psutil.Error):
            continue
    return np.array([total, ours])


def is_whystuck(words: list[str]) -> bool:
    """Tell whether a command is the supervisor, the agent or the relay, rather than the job."""
    return "whystuck" in words[1:4] or any(word.endswith("relay.py") for word in words[1:5])


def measure_run(words: list[str], ranks: int, steps: int, folder: Path) -> Values:
    """Return the CPU seconds of one job between its first and its last step, and ours of them."""
    script, token = folder / "train.py", uuid.uuid4().hex
    script.write_text(JOB)
    marks = Path(tempfile.mkdtemp(dir=folder))
    command = [*words, *call_torchrun(ranks), "--standalone", str(script), str(marks), str(steps)]
    process = subprocess.Popen(
        command, env=make_environment() | {TOKEN: token}, stderr=subprocess.DEVNULL, cwd=folder
    )
    found = []
    for name in ("begin", "end"):
        while not (marks / name).exists():
            if process.poll() is not None:
                raise SystemExit(f"the job ended with {process.returncode}")
            time.sleep(0.01)
        found.append(measure_processes(token))
        (marks / f"{name}-seen").touch()
    process.wait()
    change: Values = found[1] - found[0]
    return change


def measure_job(ranks: int, pairs: int, steps: int) -> bool:
    """Print what a job uses more with all that is ours; return whether that is in the bar.

    Jobs vary by percents from run to run. What processes and threads of whystuck take is measured
    beside it, to a tenth of a percent; what recording takes in the job's own threads, by flips.
    """
    random = np.random.default_rng(3)
    found, own = [], []
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        folder = Path(name)
        kinds = {"bare": [], "run": call_run(folder)}
        for _ in range(pairs):
            order = random.permutation(list(kinds)).tolist()
            pair = {kind: measure_run(kinds[kind], ranks, steps, folder) for kind in order}
            found.append(pair["run"][0] / pair["bare"][0] - 1)
            own.append(pair["run"][1] / pair["bare"][0])
    interval, ours = find_interval(np.array(found)), find_interval(np.array(own))
    print(
        f"job   {ranks} ranks, {pairs} pairs, CPU of all processes after the start: {interval}, "
        f"{ours} in processes and threads of whystuck"
    )
    return interval.middle <= MAX_JOB_SHARE and ours.high <= MAX_JOB_SHARE


# ------------------------------------------------------------------------------------- start


def measure_start(pairs: int) -> bool:
    """Print how much later a command starts; return whether that is in the bar."""
    code = "import time; print(time.monotonic())"
    kinds: dict[str, list[float]] = {"bare": [], "run": []}
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        for _ in range(pairs):
            for kind, waits in kinds.items():
                words = call_run(Path(name)) if kind == "run" else []
                begin_s = time.monotonic()
                said = subprocess.check_output([*words, sys.executable, "-c", code])
                waits.append(float(said) - begin_s)
    later_s = float(np.median(kinds["run"]) - np.median(kinds["bare"]))
    print(f"start {later_s:.2f} s later in the median of {pairs} (bar {MAX_START_S} s)")
    return later_s <= MAX_START_S


def main() -> int:
    """Measure all parts, or one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=("steps", "waiting", "many-ops", "job", "start"))
    options = parser.parse_args()
    is_quick = options.quick
    parts = {
        "start": lambda: measure_start(3 if is_quick else 15),
        "steps": lambda: measure_steps(*((2, 8, 2) if is_quick else (4, 200, 4))),
        "waiting": lambda: measure_waiting(*((2, 8, 2) if is_quick else (4, 200, 4))),
        "many-ops": lambda: measure_many_ops(*((2, 8, 2) if is_quick else (4, 200, 4))),
        "job": lambda: measure_job(2, *((1, 40) if is_quick else (10, 300))),
    }
    chosen = [options.part] if options.part else list(parts)
    within = [parts[part]() for part in chosen]
    return 0 if is_quick or all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
