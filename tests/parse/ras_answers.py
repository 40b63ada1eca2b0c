"""Builds answers of NCCL's RAS as NCCL 2.24 to 2.30 give them: text, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

HASH = "78db921d1c117b4a"
KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HEAD = """NCCL version 2.28.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def make_text(
    errors: str = "",
    warnings: str = "",
    *,
    size: int = 4,
    state: str = "OK",
    comms: int = 1,
) -> bytes:
    """Make the text of a job with one group of communicators."""
    row = (
        f"{0:5d}  {comms:8d}  {1:8d}  {size:>8}  {size:8d}  {size:8d}  {'RUNNING':>8}  {state:>6}\n"
    )
    text = f"{HEAD}{row}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"
    return text.encode()


def make_late_text(pid: int = 101, kind: str = "AllReduce") -> bytes:
    """Make the text of a job whose rank 1 has issued 40 of the 41 collectives of the others."""
    lines = (
        f"#0-0 ({HASH}) MISMATCH\n"
        f"  Communicator ranks have different {kind} operation counts\n"
        "  3 ranks have launched up to operation 41\n"
        "  Rank 1 has launched up to operation 40 -- "
        f"GPU 1 managed by process {pid} on node 127.0.0.1\n\n"
    )
    return make_text(warnings=lines, state="MISMATCH")


def make_json(
    counts: Sequence[int],
    *,
    pids: Sequence[int] = (),
    async_errors: Mapping[int, int] | None = None,
    missing: Sequence[dict[str, Any]] = (),
    size: int = 0,
) -> bytes:
    """Make the JSON of a job of one communicator, by what each rank has issued of all_reduce."""
    errors = async_errors or {}
    ranks = [
        {
            "rank": rank,
            "host": "127.0.0.1",
            "pid": pids[rank] if pids else 100 + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {
                "init_state": 0,
                "async_error": errors.get(rank, 0),
                "finalize_called": False,
                "destroy_flag": False,
                "abort_flag": False,
            },
            "collective_counts": dict.fromkeys(KINDS, 0) | {"AllReduce": issued},
        }
        for rank, issued in enumerate(counts)
    ]
    comm = {
        "hash": f"0x{HASH}",
        "secondary_hash": "0x1:0x2",
        "size": size or len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": list(missing),
    }
    answer = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-23 22:00:00",
        "communicators_count": 1,
        "communicators": [comm],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    return json.dumps(answer, indent=2).encode() + b"\n"


def make_missing(rank: int, pid: int, *, dead: bool = False) -> dict[str, Any]:
    """Make a rank that RAS has no data of."""
    return {
        "rank": rank,
        "host": "10.0.0.2",
        "pid": pid,
        "cuda_dev": rank,
        "nvml_dev": rank,
        "status": {"unresponsive": True, "considered_dead": dead},
    }
