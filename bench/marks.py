"""What marks cost a job: CPU of each mark, and the time of steps with them on and off in turn.

    python bench/marks.py [--quick] [--pairs N] [--part mark|latency|steps|long-steps|waiting]

Exits with 1 when a bar is missed, unless ``--quick``.

A mark: thread CPU time of the thread that trains, for steps of next to nothing with all kinds on
and off in turn in one process, divided by the marks of a step. Beside it the same of a user's mark,
and of a call while marks are off, the bytes of a mark in the ring, and what of torch is not as it
was before marks were first on.

latency: how long it takes from the write of a switch file until the last rank has applied it.

steps: a DDP job under ``whystuck run``, whose marks are switched in pairs of blocks, in an order
drawn by seed, beside a null run as in ``bench/cost.py``; of blocks of four steps of some 50 ms.
Then the same with the recording of collectives switched together with them. long-steps: the same
with steps of some 200 ms, as the jobs of ``bench/slow.py`` have: of a fixed cost, a step of 50 ms
shows four times the share, and its noise is that of the machine.

waiting: the same where forward and backward wait, for 50 ms a step, and on four ranks for 180 ms,
which is what jobs of ``bench/slow.py`` do. This tells a tenth of a percent, which real work on a
shared machine does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.cost import (
    MODEL,
    PAIRS,
    WAITING,
    Interval,
    Model,
    call_run,
    call_torchrun,
    find_interval,
    is_null,
    make_environment,
    measure_flips,
)
from bench.recorder import PROBE, run

from whystuck.pipeline import read_evidence

MAX_STEP_SHARE, STEP_MS, MAX_LATENCY_S, MAX_BYTES = 0.003, 50.0, 2.0, 32
# The same with collectives.
MAX_BOTH_SHARE = 0.005
# Two layers less than what ``bench/cost.py`` measures: steps of some 50 ms.
SHORT = (768, 4, 256, None, 0)
LONG = (768, 4, 1024, None, 0)
LONG_WAITING = (64, 4, 16, None, 180)
STEPS_IN_BLOCK = 4

COST = """
import json, sys, time
import torch, torch.distributed as dist
import whystuck
dist.init_process_group("gloo")
switch = sys.modules["_whystuck_probe.switch"]
parts, marks = switch.PARTS, switch.MARKS
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(1 << 20, 1), batch_size=None)
batches = iter(loader)
def train(steps):
    begin_ns = time.thread_time_ns()
    for _ in range(steps):
        model(next(batches)).sum().backward()
        optimizer.step()
    return (time.thread_time_ns() - begin_ns) / steps / 1e3
def mark(calls):
    begin_ns = time.thread_time_ns()
    for _ in range(calls):
        with whystuck.mark("mine"):
            pass
    return (time.thread_time_ns() - begin_ns) / calls / 1e3
def list_parts():
    # All functions of torch, and how much its registries of hooks hold.
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch":
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = len(value or ()) if key.startswith("_global_") else value
            if isinstance(value, type):
                found.update({(name, key, one): what for one, what in vars(value).items()})
    return {key: one for key, one in found.items() if callable(one) or isinstance(one, int)}
train(20)
before = list_parts()
found = {"step": [], "user": []}
for turn in range(int(sys.argv[1])):
    pairs = [[], []]
    for word in ("off", "on"):
        assert not parts.apply(dict.fromkeys(marks, word), turn + 2, 0)
        train(20)
        pairs[0].append(train(200))
        pairs[1].append(mark(500))
    found["step"].append(pairs[0])
    found["user"].append(pairs[1])
assert not parts.apply(dict.fromkeys(marks, "off"), 10**6, 0)
after = list_parts()
found["parts"] = len(before)
found["changed"] = sorted(
    ".".join(key)
    for key, one in before.items()
    if callable(one) and after.get(key) is not one or "_global_" in key[1] and after[key] != one
)
found["bytes"] = sys.modules["_whystuck_probe.marks.ring"].MARK.size
print(json.dumps(found))
dist.destroy_process_group()
"""

STEPS = (
    MODEL
    + """
switch = sys.modules["_whystuck_probe.switch"]
parts = switch.PARTS
keys = (*switch.MARKS, "comm") if sys.argv[3] == "both" else switch.MARKS
loader = torch.utils.data.DataLoader([batch] * (1 << 16), batch_size=None)
batches = iter(loader)
clock, warm = time.thread_time, 2
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(next(batches)).sum().backward()
        optimizer.step()
def flip(generation, is_on, is_null):
    problem = parts.apply(
        dict.fromkeys(keys, "on" if is_on and not is_null else "off"), generation, 0
    )
    assert not problem, problem
"""
    + PAIRS
)

PACED = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([value], lr=0.1)
while True:
    time.sleep(float(sys.argv[2]))
    over = torch.tensor([float(os.path.exists(sys.argv[1]))])
    dist.broadcast(over, 0)
    if over.item():
        break
    optimizer.step()
    open(sys.argv[1] + ".begun", "w").close()
dist.destroy_process_group()
"""


def measure_mark(turns: int) -> bool:
    """Print what a mark costs; return whether those of a step are in the bar."""
    os.environ["BENCH_PROBE"] = str(PROBE)
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        found = json.loads(run(sys.executable, COST, 1, Path(folder), str(turns)))
    steps, user = np.array(found["step"]), np.array(found["user"])
    # Data loader, forward, backward, optimizer, step.
    more_us = find_interval(steps[:, 1] - steps[:, 0])
    off_us, on_us = np.median(user, axis=0)
    share = more_us.middle / 1e3 / STEP_MS
    print(
        f"five marks of a step: {more_us.middle:.1f} us of CPU "
        f"[{more_us.low:.1f}, {more_us.high:.1f}] in {turns} pairs, "
        f"{more_us.middle / 5:.2f} us each"
    )
    print(f"of a step of {STEP_MS:.0f} ms: {share:.3%} (bar {MAX_STEP_SHARE:.1%})")
    print(f"a range of the job's own: {on_us:.2f} us, {off_us:.2f} us while marks are off")
    print(f"a mark in the ring: {found['bytes']} bytes (bar {MAX_BYTES})")
    changed = found["changed"]
    print(f"marks off again: {len(changed)} of {found['parts']} parts of torch are not as before")
    print("".join(f"    {one}\n" for one in changed), end="")
    return share <= MAX_STEP_SHARE and found["bytes"] <= MAX_BYTES and not changed


def measure_steps(pairs: int, model: Model, ranks: int = 2) -> bool:
    """Print what marks change in steps; return whether no bar is missed for sure.

    A mark is in each step: the middle one of a block tells of it, and not of what the machine did
    in another.
    """
    is_null(_measure_flips("null", ranks, pairs, model))
    bars = {"flips": MAX_STEP_SHARE, "both": MAX_BOTH_SHARE}
    within = [_is_within(_measure_flips(kind, ranks, pairs, model), bars[kind]) for kind in bars]
    return all(within)


def _measure_flips(kind: str, ranks: int, pairs: int, model: Model) -> Interval:
    return measure_flips(ranks, pairs, STEPS_IN_BLOCK, kind, model, STEPS).middle_step


def _is_within(found: Interval, bar: float) -> bool:
    """Print whether a bar is met; what is measured on a busy machine is wide, and may be both."""
    word = "met" if found.high <= bar else "missed" if found.low > bar else "not ruled out"
    print(f"      bar {bar:.1%} of the time of a step: {word}")
    return word != "missed"


def measure_latency(flips: int, step_s: float) -> bool:
    """Print how long it takes from a switch file to the last rank; return whether in the bar."""
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        folder = Path(name)
        script, file, over = folder / "train.py", folder / "switch.json", folder / "over"
        script.write_text(PACED)
        words = [*call_run(folder)[:-1], "--switch-file", str(file), "--", *call_torchrun(2)]
        process = subprocess.Popen(
            [*words, "--standalone", str(script), str(over), str(step_s)],
            env=make_environment(SHORT),
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        while not over.with_suffix(".begun").exists() and process.poll() is None:
            time.sleep(0.1)
        written = {}
        for turn in range(1, flips + 1):
            time.sleep(4 + 3 * turn % 1.7)
            part = file.with_name("part")
            state = {"generation": turn + 10, "marks": ("off", "on")[turn % 2]}
            part.write_text(json.dumps(state))
            written[turn + 10] = time.time_ns()
            part.replace(file)
        time.sleep(4 + 3 * step_s)
        over.touch()
        process.wait()
        logs = read_evidence(folder / "evidence").marks.logs
    notes = [{note.generation: note for note in log.notes} for log in logs]
    taken = [written.keys() & one.keys() for one in notes]
    late_s = [
        (max(one[turn].time_ns for one in notes) - written[turn]) / 1e9
        for turn in set.intersection(*taken)
    ]
    same = all(len({one[turn].step for one in notes}) == 1 for turn in set.intersection(*taken))
    print(
        f"steps of {step_s:.2f} s: {len(late_s)} of {flips} changes of a switch file on all ranks "
        f"after {np.median(late_s):.2f} s, at most {max(late_s):.2f} s; at the same step: {same}"
    )
    return same and max(late_s) <= MAX_LATENCY_S + step_s


def main() -> int:
    """Measure all parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--part", choices=("mark", "latency", "steps", "long-steps", "waiting"))
    options = parser.parse_args()
    is_quick = options.quick
    parts = {
        "mark": lambda: measure_mark(3 if is_quick else 40),
        "latency": lambda: all(
            [
                measure_latency(3 if is_quick else 12, 0.05),
                measure_latency(2 if is_quick else 6, 1.0),
            ]
        ),
        "steps": lambda: measure_steps(8 if is_quick else options.pairs, SHORT),
        "long-steps": lambda: measure_steps(4 if is_quick else options.pairs, LONG),
        "waiting": lambda: all(
            [
                measure_steps(4 if is_quick else options.pairs, WAITING),
                measure_steps(2 if is_quick else options.pairs, LONG_WAITING, ranks=4),
            ]
        ),
    }
    within = [parts[part]() for part in ([options.part] if options.part else parts)]
    return 0 if is_quick or all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
