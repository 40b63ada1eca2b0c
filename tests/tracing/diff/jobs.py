"""Traces of made-up and of real jobs, to be compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.diff.metrics import DIFF_TABLES
from whystuck.tracing.diff.side import Side
from whystuck.tracing.reduce import measure_rank

Event = dict[str, Any]
OPTIONS = TraceOptions(tables=DIFF_TABLES, only_tables=True, all_steps=True)


def side_of(traces: Sequence[Trace], label: str = "run") -> Side:
    """The traces of one run, measured."""
    side = Side(label)
    for trace in traces:
        side.add(measure_rank(trace, OPTIONS))
    return side


def gpu_step(
    start_us: float, kernels: Sequence[tuple[str, str, float]], number: int
) -> list[Event]:
    """A step that launches kernels one after the other: op, kernel and length of each.

    The host takes 10 us for each op and waits at the end; the step is over with the last kernel.
    """
    events, at, device = [], start_us + 5.0, start_us + 10.0
    for place, (op, kernel, us) in enumerate(kernels):
        key = number * 1000 + place
        events += [
            make_event("cpu_op", op, at, 8),
            make_event("cuda_runtime", "cudaLaunchKernel", at + 1, 4, correlation=key),
        ]
        args = {"device": 0, "stream": 7, "correlation": key}
        events.append(make_event("kernel", kernel, device, us, pid=0, tid=7, **args))
        at, device = at + 10, device + us
    wait = max(device - at, 1)
    events.append(make_event("cuda_runtime", "cudaDeviceSynchronize", at, wait))
    end = at + wait
    events.append(make_event("user_annotation", f"ProfilerStep#{number}", start_us, end - start_us))
    return events


def gpu_run(
    step: Callable[[int], Sequence[tuple[str, str, float]]], steps: int, rank: int = 0
) -> Trace:
    """The trace of a rank whose steps launch kernels."""
    events: list[Event] = []
    at = 1000.0
    for number in range(steps):
        made = gpu_step(at, step(number), number)
        events += made
        at = made[-1]["ts"] + made[-1]["dur"]
    return make_trace(events, distributedInfo={"rank": rank, "world_size": 8})


def noisy(
    kernels: Sequence[tuple[str, str, float]], seed: int, spread: float = 0.01
) -> Callable[[int], list[tuple[str, str, float]]]:
    """Steps of the same kernels, whose lengths differ by chance."""
    rng = np.random.default_rng(seed)
    return lambda _: [
        (op, kernel, round(us * float(1 + spread * rng.standard_normal()), 3))
        for op, kernel, us in kernels
    ]


_SCRIPT = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
torch.set_num_threads(1)
path, steps, warm_up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{source}
plan = schedule(wait=0, warmup=warm_up, active=steps, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, **{options}) as profiler:
    for number in range(warm_up + steps):
        step(number)
        profiler.step()
profiler.export_chrome_trace(path)
"""


def profile_job(
    path: Path, source: str, steps: int = 12, warm_up: int = 3, options: str = "{}"
) -> Path:
    """Run a real job of torch on the CPU, and write its trace; `source` defines `step(number)`."""
    script = _SCRIPT.format(source=source, options=options)
    words = [sys.executable, "-c", script, str(path), str(steps), str(warm_up)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return path
