"""Builds logs of NCCL's inspector plugin, in the formats 4.0 and 4.3."""

from __future__ import annotations

import json
from typing import Any

HASH = "0x7f8c496ae9f661"


def make_op(
    op: str = "AllReduce", number: int = 1, size: int = 1 << 20, time_us: float = 500, **more: Any
) -> dict[str, Any]:
    """Make what the inspector tells of a collective."""
    figures = {
        "coll": op,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 2.1,
        "coll_busbw_gbs": 3.2,
    }
    return {"coll_perf": figures | more}


def make_transfer(op: str = "Send", number: int = 1, time_us: float = 40) -> dict[str, Any]:
    """Make what the inspector tells of a message to rank 1."""
    figures = {
        "p2p": op,
        "p2p_sn": number,
        "p2p_peer": 1,
        "p2p_msg_size_bytes": 4096,
        "p2p_exec_time_us": time_us,
        "p2p_timing_source": "kernel_cpu",
    }
    return {"p2p_perf": figures}


def make_head(
    version: str, rank: int = 0, size: int = 2, *, name: str = HASH, host: str = "n0", pid: int = 0
) -> dict[str, Any]:
    """Make what tells whose an op is."""
    return {
        "header": {"id": name, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": version,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1748030377748202,
            "hostname": host,
            "pid": pid or 100 + rank,
        },
    }


def make_log(*ops: dict[str, Any], version: str = "v4.0", dropped: int = 0, **whose: Any) -> bytes:
    """Make a log of one communicator: with what tells whose it is in each line, or in the first."""
    head = make_head(version, **whose)
    if version == "v4.0":
        lines = [head | op for op in ops]
    else:
        stats = {
            "coll_records": sum("coll_perf" in op for op in ops),
            "coll_dropped_total": dropped,
            "p2p_records": sum("p2p_perf" in op for op in ops),
        }
        lines = [head | {"dump_stats": stats}, *ops]
    texts = (json.dumps(line, separators=(",", ":")) for line in lines)
    return "".join(f"{text}\n" for text in texts).encode()
