"""What the metrics of devices take, once traces are in memory, against those of HTA.

A part of `traces.py`, which makes the traces and the environment of HTA. Run with files, it prints
what ours take, as one line of JSON. Seconds are those of CPU; both tools measure all files, one
after the other, once. What several of our metrics share is listed apart, and counts in the sum.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy.ma  # noqa: F401 - numpy does so when it is first needed; imports are not counted

from whystuck.evidence.traces.options import TraceOptions
from whystuck.read.traces.files import read_trace_file
from whystuck.read.traces.local import WORKER_ENVIRONMENT
from whystuck.tracing.arrays.allocation import keep_freed_memory
from whystuck.tracing.metrics import METRICS
from whystuck.tracing.view import TraceView

# Our tables for each of the analyses of HTA; `trace_metrics_peer.py` calls those by the same names.
TABLES: dict[str, tuple[str, ...]] = {
    "temporal breakdown": ("temporal_breakdown",),
    "overlap": ("overlap",),
    "kernel breakdown": ("kernels", "kernel_classes"),
    "idle causes": ("idle_causes",),
    "launches": ("launches",),
    "queue length": ("queue_length",),
    "memory bandwidth": ("copies",),
}
SHARED = "shared"
BAR = 50


def measure_files(files: Sequence[Path]) -> dict[str, float]:
    """Measure our metrics on files, one after the other.

    Args:
        files: Traces, one of each rank.

    Returns:
        Seconds of CPU by analysis, and those for what they share.
    """
    seconds = dict.fromkeys((SHARED, *TABLES), 0.0)
    by_name = {metric.name: metric for metric in METRICS}
    options = TraceOptions()
    keep_freed_memory()
    for path in files:
        trace = read_trace_file(path)
        before = time.process_time()
        view = TraceView(trace, options)
        _ = view.device_class, view.device_busy, view.stream_gaps
        seconds[SHARED] += time.process_time() - before
        for analysis, tables in TABLES.items():
            before = time.process_time()
            for table in tables:
                by_name[table].measure(view, options)
            seconds[analysis] += time.process_time() - before
    return seconds


def compare_files(name: str, files: Sequence[Path], peer: Path | None) -> None:
    """Print what each analysis takes.

    Args:
        name: What the set of traces is called.
        files: Its traces.
        peer: The Python in whose environment HTA is, if it shall be compared.
    """
    ours = _ask(sys.executable, Path(__file__), files, WORKER_ENVIRONMENT)
    theirs = _ask(peer, Path(__file__).with_name("trace_metrics_peer.py"), files) if peer else {}
    print(f"\nmetrics of {name:<16} seconds      HTA   ratio")
    for analysis, seconds in ours.items():
        print(f"  {analysis:<24} {seconds:>8.3f}" + _tell(theirs.get(analysis), seconds))
    total = sum(ours.values())
    print(f"  {'sum':<24} {total:>8.3f}" + _tell(sum(theirs.values()) or None, total), end="")
    print(f" (bar {BAR}x)" if theirs else "", flush=True)


def _ask(
    python: Path | str,
    script: Path,
    files: Sequence[Path],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, float]:
    done = subprocess.run(
        [python, script, *files],
        env={**environment, **os.environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def _tell(theirs: float | None, ours: float) -> str:
    return "" if theirs is None else f" {theirs:>8.2f} {theirs / max(ours, 1e-6):>6.0f}x"


if __name__ == "__main__":
    print(json.dumps(measure_files([Path(name) for name in sys.argv[1:]])))
