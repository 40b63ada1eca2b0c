"""What recording every collective costs a job, and how exactly the end of an op is known.

    python bench/recorder.py [--python PATH] [--probe PATH] [--only cost] [--pairs N] [--quick]

``--python`` is the interpreter that runs the jobs; one with torch 2.14 or newer shows native hooks.
``--probe`` is the folder of another version of the probe, to compare with.
Exits with 1 when a bar is missed, unless ``--quick``.

Cost of an op: thread CPU time of an ``all_reduce`` on torch's fake process group, recording on and
off in turn; and of one on the backend of the tests that answers as NCCL does, with a tensor on a
device and no handle, where there is a C++ compiler. End of an op: ranks join an asynchronous
``all_reduce`` one after the other, and the last one tells when it was over. What the steps of a job
pay is in ``bench/cost.py``.

Inspection has no bar. What looking into an op costs is measured as above, with recording on and
each of some SPECs in turn; what `sync` costs is the change of the steps of a DDP job of two ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.backends import Backend
from tests.nccl_like.building import NotBuiltError, build
from tests.nccl_like.jobs import HEAD
from tests.probe.oplog.op_log_file import ASYNC, read_op_log

PROBE = Path(__file__).parents[1] / "src/whystuck/probe"
MAX_HOOKS_US, MAX_DISPATCHER_US, MAX_END_ERROR_MS = 1.5, 12.0, 20.0
Values = NDArray[np.float64]

ON_HOST = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
value = torch.ones(8)
"""

ON_DEVICE = HEAD + "value = like.make_tensor(8)"

COST = """
import glob, json, sys, time
probe = sys.modules["_whystuck_probe.install"]
recorder = probe._PROBES[-1]._rank.recorder
def read_ours_ns():
    for task in glob.glob("/proc/self/task/*/"):
        if open(task + "comm").read() == "whystuck-ops\\n":
            return int(open(task + "schedstat").read().split()[0])
    return 0
def measure(calls):
    begin_ns = time.thread_time_ns()
    for _ in range(calls):
        dist.all_reduce(value)
    return (time.thread_time_ns() - begin_ns) / calls / 1e3
pairs, ours, generation = [], [], 1
for _ in range(int(sys.argv[1])):
    costs = []
    for is_on in (False, True):
        generation += 1
        recorder.switch(generation, on=is_on)
        measure(50)
        begin_ns = read_ours_ns()
        costs.append(measure(500))
    # Until all of them are on record and over.
    time.sleep(0.02)
    ours.append((read_ours_ns() - begin_ns) / 500 / 1e3)
    pairs.append(costs)
method = "hooks" if hasattr(dist.group.WORLD, "register_pre_hook") else "dispatcher"
floors = []
if method == "hooks":
    # What torch itself takes for hooks that do nothing but keep what they are given.
    recorder.switch(generation + 1, on=False)
    for _ in range(int(sys.argv[1])):
        costs = [measure(500)]
        dist.group.WORLD.register_pre_hook(7, [].append)
        dist.group.WORLD.register_post_hook(7, [].append)
        measure(50)
        costs.append(measure(500))
        dist.group.WORLD.unregister_pre_hook(7)
        dist.group.WORLD.unregister_post_hook(7)
        floors.append(costs)
found = {"torch": torch.__version__, "method": method, "pairs": pairs, "ours": ours}
found["floors"] = floors
print(json.dumps(found))
"""

ENDS = """
import json, random, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, chance, value = dist.get_rank(), random.Random(5), torch.ones(16)
dist.all_reduce(value)
ends = []
for _ in range(int(sys.argv[1])):
    delay_s = chance.uniform(0.005, 0.15)
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(value, async_op=True)
        end_s = time.monotonic() + 0.2
        while time.monotonic() < end_s:
            sum(range(2000))
        work.wait()
    else:
        time.sleep(delay_s)
        dist.all_reduce(value)
        ends.append(time.monotonic_ns())
        time.sleep(0.2 - delay_s)
if rank == 1:
    print(json.dumps(ends))
dist.destroy_process_group()
"""

INSPECTED = """
import json, sys, time
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
probe = sys.modules["_whystuck_probe.install"]
make_setting = sys.modules["_whystuck_probe.switch"].Setting
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
rank, value, costs = probe._PROBES[-1]._rank, torch.ones(8), {}
def measure(calls):
    begin_ns = time.thread_time_ns()
    for _ in range(calls):
        dist.all_reduce(value)
    return (time.thread_time_ns() - begin_ns) / calls / 1e3
for turn in range(int(sys.argv[1])):
    for spec in sys.argv[2:]:
        assert rank._switch_inspection(make_setting(spec, turn + 2, 0)) == ""
        measure(20)
        costs.setdefault(spec, []).append(measure(200))
print(json.dumps(costs))
"""

SYNC = """
import json, sys, time
import torch, torch.distributed as dist
probe = sys.modules["_whystuck_probe.install"]
dist.init_process_group("gloo")
torch.set_num_threads(1)
layers = [torch.nn.Linear(256, 256) for _ in range(12)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rank, batch = probe._PROBES[-1]._rank, torch.ones(256, 256)
make_setting = sys.modules["_whystuck_probe.switch"].Setting
blocks, flips = [], int(sys.argv[1])
for flip in range(flips + 1):
    is_on = flip % 2 == 1
    setting = make_setting("sync" if is_on else "off", flip + 2, 0)
    rank._switch_inspection(setting)
    dist.barrier()
    begin, cpu = time.perf_counter(), time.thread_time()
    for _ in range(20):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    blocks.append([(time.perf_counter() - begin) / 20, (time.thread_time() - cpu) / 20])
if dist.get_rank() == 0:
    print(json.dumps({"blocks": blocks[1:]}))
dist.destroy_process_group()
"""


def run(python: str, script: str, ranks: int, folder: Path, *arguments: str, **more: str) -> str:
    """Run a script with the probe in it, and return what it printed."""
    (folder / "switch.json").write_text(json.dumps({"generation": 1, "comm": "on"}))
    path = folder / "train.py"
    path.write_text(script)
    environment = os.environ | {
        "WHYSTUCK_JOB_DIR": str(folder),
        "PYTHONPATH": str(Path(os.environ["BENCH_PROBE"]) / "site"),
        "OMP_NUM_THREADS": "1",
        **more,
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [python, *launcher, str(path), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    return next(line for line in done.stdout.splitlines() if line[:1] in "[{")


def measure_device_cost(python: str, pairs: int) -> bool:
    """Print what an op on a device costs, as far as a machine without one shows it."""
    with tempfile.TemporaryDirectory(prefix="ws") as cache:
        try:
            like = build(Path(cache), python)
        except NotBuiltError as problem:
            print(f"an op on a device: not measured: {problem}")
            return True
        more = {"CUDART": str(like.cudart), "CUDA": str(like.cuda)}
        head = Backend(like).adapt(ON_DEVICE)
        return measure_cost(python, pairs, head, "on a device, ", **more)


def measure_cost(
    python: str, pairs: int, head: str = ON_HOST, where: str = "", **more: str
) -> bool:
    """Print what an op costs; return whether that is within the bar."""
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        found = json.loads(run(python, head + COST, 1, Path(folder), str(pairs), **more))
    off, on = np.array(found["pairs"]).T
    # What other processes do to the caches only ever adds: the best of each tells the cost.
    cost_us = float(on.min() - off.min())
    limit = MAX_HOOKS_US if found["method"] == "hooks" else MAX_DISPATCHER_US
    print(
        f"an op, {where}{found['method']}, torch {found['torch']}: {cost_us:.1f} us more "
        f"(median of pairs {np.median(on - off):.1f}, an op alone {off.min():.1f}; bar {limit}), "
        f"and {np.median(found['ours']):.1f} us in the thread of ours"
    )
    if found["floors"]:
        bare, kept = np.array(found["floors"]).T
        print(
            f"the floor: two hooks of torch that only append what they are given, in C: "
            f"{kept.min() - bare.min():.1f} us"
        )
    return cost_us <= limit


def measure_inspection(python: str, turns: int) -> None:
    """Print what inspected ops cost: all that is ours but the figures, and with figures."""
    # No tensor is that large: the op is looked into, and its tensor is not.
    specs = ["off", "stats:min=1g", "finite", "stats", "sync"]
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        found = json.loads(run(python, INSPECTED, 1, Path(folder), str(turns), *specs))
    best = {spec: min(costs) for spec, costs in found.items()}
    told = ", ".join(f"{spec} {best[spec] - best['off']:.1f}" for spec in specs[1:])
    print(f"an inspected op costs beside its record, in us: {told}")


def measure_sync(python: str, flips: int) -> None:
    """Print what `sync` does to the steps of a DDP job."""
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        found = json.loads(run(python, SYNC, 2, Path(folder), str(flips)))
    wall, cpu = np.array(found["blocks"]).T
    change = _compare(wall)
    low, high = _find_interval(change)
    print(
        f"sync in a DDP job of 2 ranks, {flips} flips: steps of {np.median(wall[1::2]) * 1e3:.1f} "
        f"ms take {np.median(wall[0::2]) * 1e3:.1f} ms, {np.median(change):+.1%} (95 % of the mean "
        f"between {low:+.1%} and {high:+.1%}), thread CPU {np.median(_compare(cpu)):+.1%}"
    )


def _compare(values: Values) -> Values:
    """Compare blocks with recording, those at even places, with their neighbours without it."""
    on, off = values[0::2], values[1::2]
    count = min(len(on) - 1, len(off) - 1)
    beside = (off[:count] + off[1 : count + 1]) / 2
    result: Values = on[1 : count + 1] / beside - 1
    return result


def _find_interval(change: Values) -> tuple[float, float]:
    """Return the 95 % interval of the mean by the bootstrap."""
    random = np.random.default_rng(1)
    means = random.choice(change, (4000, len(change))).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def measure_ends(python: str, count: int) -> bool:
    """Print how exactly the end of asynchronous ops is known; return whether that is in the bar."""
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        folder = Path(name)
        ends_ns = np.array(json.loads(run(python, ENDS, 2, folder, str(count))))
        logs = [read_op_log(path) for path in folder.glob("ops-*")]
    (log,) = [log for log in logs if log.about["rank"] == 0]
    ops = [op for op in log.ops if op.op == "all_reduce" and op.flags & ASYNC]
    told_ns = np.array([(max(op.pending_ns, op.enqueue_ns) + op.done_ns) / 2 for op in ops])
    error_ms = (told_ns - ends_ns) / 1e6
    p95 = float(np.quantile(np.abs(error_ms), 0.95))
    print(
        f"the end of {len(ops)} async ops: bias {np.mean(error_ms):+.2f} ms, "
        f"p95 of the error {p95:.2f} ms (bar {MAX_END_ERROR_MS})"
    )
    return p95 <= MAX_END_ERROR_MS


def main() -> int:
    """Measure all, and compare with the bars."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--probe", type=Path, default=PROBE)
    parser.add_argument("--only", choices=["cost"])
    parser.add_argument("--pairs", type=int, default=0, help="of costs that are measured")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ["BENCH_PROBE"] = str(options.probe.resolve())
    results = [
        measure_cost(options.python, options.pairs or (5 if options.quick else 60)),
        measure_device_cost(options.python, options.pairs or (5 if options.quick else 60)),
    ]
    if options.only:
        return 0 if options.quick or all(results) else 1
    results.append(measure_ends(options.python, 10 if options.quick else 200))
    measure_inspection(options.python, 3 if options.quick else 30)
    measure_sync(options.python, 8 if options.quick else 100)
    return 0 if options.quick or all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
