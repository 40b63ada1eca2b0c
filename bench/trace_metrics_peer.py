"""What the analyses of HTA take, in its own environment: `trace_metrics_peer.py FILE...`.

It prints one line of JSON; the names are those of `trace_metrics.py`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings


def main() -> None:
    """Load the traces, and measure each analysis once, on all ranks."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
    ranks = list(range(len(sys.argv) - 1))
    analyses = {
        "temporal breakdown": lambda: analysis.get_temporal_breakdown(visualize=False),
        "overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
        "kernel breakdown": lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
        "idle causes": lambda: analysis.get_idle_time_breakdown(ranks=ranks, visualize=False),
        "launches": lambda: analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False),
        "queue length": lambda: analysis.get_queue_length_summary(ranks=ranks),
        "memory bandwidth": lambda: analysis.get_memory_bw_summary(ranks=ranks),
    }
    seconds = {}
    for name, measure in analyses.items():
        before = time.process_time()
        measure()  # type: ignore[no-untyped-call]
        seconds[name] = time.process_time() - before
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
