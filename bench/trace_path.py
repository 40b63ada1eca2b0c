"""What the critical path and a replay cost: graphs of 10^4 to 10^6 nodes, beside a plain search.

Run it as ``python bench/trace_path.py [NODES...]``.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from whystuck.evidence.traces.events import Category, Trace, TraceEvents
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.critical.chains import measure_chains
from whystuck.tracing.critical.graph import PathGraph
from whystuck.tracing.critical.tables import measure_path, view_graph
from whystuck.tracing.critical.walk import find_longest
from whystuck.tracing.view import TraceView

LIMIT_S = 1.0  # for 100 000 nodes


def make_trace(kernels: int, seed: int = 0) -> Trace:
    """A training loop: each op launches a kernel on one of three streams."""
    random = np.random.default_rng(seed)
    names = ("aten::mm", "cudaLaunchKernel", "gemm", "ncclDevKernel_AllReduce")
    host = random.integers(5_000, 15_000, kernels)
    at = np.cumsum(host) - host
    call, call_ns = at + 1_000, 3_000
    stream = random.choice([7, 7, 7, 20, 30], kernels)
    start, end = np.zeros(kernels, np.int64), np.zeros(kernels, np.int64)
    length = random.integers(2_000, 16_000, kernels)
    free: dict[int, int] = defaultdict(int)
    for one in range(kernels):
        begin = max(int(call[one]) + 6_000, free[int(stream[one])])
        start[one], end[one] = begin, begin + length[one]
        free[int(stream[one])] = int(end[one])
    kernel = np.where(stream == 20, 3, 2)
    link = np.arange(kernels)
    zero, none = np.zeros(kernels, np.int64), np.full(kernels, -1)
    columns = {
        "start_ns": [at, call, start],
        "duration_ns": [host - 500, zero + call_ns, length],
        "name": [zero, zero + 1, kernel],
        "category": [
            zero + Category.CPU_OP,
            zero + Category.RUNTIME,
            zero + Category.KERNEL,
        ],
        "pid": [zero + 1, zero + 1, zero],
        "tid": [zero + 1, zero + 1, stream],
        "device": [none, none, zero],
        "stream": [none, none, stream],
        "correlation": [none, link, link],
        "external": [none, none, none],
    }
    types = {one: getattr(TraceEvents(), one).dtype for one in columns}
    events = TraceEvents(
        **{name: np.concatenate(parts).astype(types[name]) for name, parts in columns.items()}
    )
    return Trace(rank=0, vendor="cuda", names=names, events=events)


def plain_longest(graph: PathGraph) -> int:
    """The longest path by dictionaries, one node after the other."""
    into: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for src, dst, weight in zip(
        graph.src.tolist(), graph.dst.tolist(), graph.weight.tolist(), strict=True
    ):
        into[dst].append((src, weight))
    best = [0] * len(graph)
    for node in range(len(graph)):
        best[node] = max((best[src] + weight for src, weight in into[node]), default=0)
    return best[-1]


def timed(what: Callable[..., Any], *arguments: object) -> tuple[float, Any]:
    started = time.process_time()
    made = what(*arguments)
    return time.process_time() - started, made


def measure(nodes: int) -> float:
    """Print a line; return what build and path take."""
    view, options = TraceView(make_trace(nodes // 3)), TraceOptions()
    built, graph = timed(view_graph, view)
    path, _ = timed(measure_path, view, options)
    chains, _ = timed(measure_chains, view, options)
    replay, (lengths, _) = timed(find_longest, len(graph), graph.src, graph.dst, graph.weight)
    plain, longest = timed(plain_longest, graph)
    assert int(lengths[-1]) == longest == graph.wall_ns
    row = (len(graph), len(graph.src), built, path, chains, replay, plain)
    print("{:>9} {:>9} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f}".format(*row))
    return built + path


def main() -> int:
    sizes = [int(one) for one in sys.argv[1:]] or [10_000, 100_000, 1_000_000]
    titles = ("build s", "path s", "chains s", "replay s", "plain s")
    print(f"{'nodes':>9} {'edges':>9}" + "".join(f" {title:>8}" for title in titles))
    took = {nodes: measure(nodes) for nodes in sizes}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak {peak:.0f} MB; the bar is {LIMIT_S} s for build and path of 100000 nodes")
    return int(took.get(100_000, 0) > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
