"""Builds flight-recorder dumps as torch 2.13 writes them on gloo."""

from __future__ import annotations

import json
import pickle
from typing import Any

Entry = dict[str, Any]


def make_entry(op: str = "all_reduce", seq: int = 1, **changes: Any) -> Entry:
    entry: Entry = {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main",
        "thread_id": "1",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": 1_000_000_000 + seq,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "frames": [],
    }
    return entry | changes


def make_dump(entries: list[Entry], **changes: Any) -> dict[str, Any]:
    dump: dict[str, Any] = {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "comm_lib_version": "",
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
        "entries": entries,
    }
    return dump | changes


def as_pickle(dump: object) -> bytes:
    return pickle.dumps(dump, protocol=2)


def as_json(dump: object) -> bytes:
    return json.dumps(dump).encode()


def make_p2p(name: str, seq: int, record: int, **changes: Any) -> Entry:
    """Make an op between two ranks as NCCL records it, e.g. ``send 0->1``."""
    entry = make_entry(
        record_id=record,
        collective_seq_id=0,
        p2p_seq_id=seq,
        op_id=record,
        profiling_name=f"nccl:{name}",
        retired=False,
        is_p2p=True,
    )
    return entry | changes


def make_config(**ranks_by_name: tuple[str, list[int]]) -> dict[str, Any]:
    """Make ``pg_config``: of each group its description and its ranks, by name."""
    return {
        name: {"name": name, "desc": desc, "ranks": str(ranks)}
        for name, (desc, ranks) in ranks_by_name.items()
    }
