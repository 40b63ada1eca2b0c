"""What the rules about traces read: tables may be missing, and columns may be missing in them.

Tables come from partials and from Python, too, of any release and with any part left out. What is
read here has all columns that are listed, so that no rule has to ask: a table without one that it
says nothing without counts as missing, any other column is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np

from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.tables import TraceSummary

CAUSES = (
    "compute",
    "exposed_comm",
    "exposed_memory",
    "data_wait",
    "sync",
    "host",
    "launch",
    "idle",
)


class _Key(Enum):
    """A column that the table says nothing without: of numbers, or of texts."""

    NUMBER = -1
    TEXT = ""


_KEY, _NAME = _Key.NUMBER, _Key.TEXT
_WHOLE, _REAL, _TEXT = -1, float("nan"), ""
_Default = int | float | str | _Key

COLUMNS: Mapping[str, Mapping[str, _Default]] = {
    "steps": {"rank": _KEY, "step": _WHOLE, "start_ns": _KEY, "end_ns": _KEY, "mark": _TEXT},
    "step_time": {
        "rank": _KEY,
        "step": _WHOLE,
        "wall_ns": _KEY,
        **{f"{cause}_ns": _WHOLE for cause in CAUSES},
    },
    "temporal_breakdown": {"rank": _KEY, "wall_ns": _KEY, "busy_ns": _WHOLE},
    "idle_summary": {
        "rank": _KEY,
        "idle_ns": _WHOLE,
        "host_wait_ns": _WHOLE,
        "kernel_wait_ns": _WHOLE,
        "other_ns": _WHOLE,
    },
    "data_waits": {
        "rank": _WHOLE,
        "step": _WHOLE,
        "name": _NAME,
        "count": _KEY,
        "sum_ns": _KEY,
        "exposed_ns": _KEY,
    },
    "compilations": {
        "rank": _KEY,
        "step": _KEY,
        "name": _TEXT,
        "count": _WHOLE,
        "sum_ns": _KEY,
    },
    "host_syncs": {
        "rank": _KEY,
        "call": _TEXT,
        "op": _TEXT,
        "place": _TEXT,
        "count": _WHOLE,
        "sum_ns": _WHOLE,
        "idle_after_ns": _KEY,
    },
    "copies": {
        "rank": _KEY,
        "kind": _NAME,
        "is_pageable": _KEY,
        "count": _WHOLE,
        "bytes": _KEY,
        "sum_ns": _KEY,
    },
    "kernels": {"name": _NAME, "class": _NAME, "sum_ns": _KEY},
    "short_kernels": {
        "rank": _KEY,
        "class": _NAME,
        "name": _NAME,
        "count": _KEY,
        "sum_ns": _KEY,
        "gap_ns": _WHOLE,
    },
    "launch_summary": {"api": _NAME, "count": _KEY, "cpu_ns": _KEY, "late_count": _WHOLE},
    "op_kernels": {
        "op": _TEXT,
        "outer_op": _TEXT,
        "kernel": _TEXT,
        "count": _WHOLE,
        "sum_ns": _WHOLE,
    },
    "comm_ops": {
        "rank": _KEY,
        "group": _NAME,
        "op": _NAME,
        "count": _KEY,
        "sum_ns": _WHOLE,
        "exposed_ns": _WHOLE,
        "all_count": _WHOLE,
        "group_desc": _TEXT,
    },
    "collective_groups": {
        "op": _NAME,
        "group": _NAME,
        "bytes_to": _WHOLE,
        "exposed_ns": _WHOLE,
        "wait_ns": _KEY,
        "transfer_ns": _KEY,
        "busbw_gbps": _REAL,
    },
    "collectives": {
        "group": _TEXT,
        "sequence": _WHOLE,
        "op": _NAME,
        "last_rank": _KEY,
        "wait_ns": _KEY,
    },
    "rank_blame": {
        "rank": _KEY,
        "times_last": _WHOLE,
        "wait_suffered_ns": _WHOLE,
        "peer_wait_ns": _WHOLE,
        "collectives": _WHOLE,
    },
    "straggler": {
        "rank": _KEY,
        "wait_caused_ns": _WHOLE,
        "times_last": _KEY,
        "collectives": _KEY,
        "p_value": _REAL,
        "cause": _TEXT,
        "late_ns": _KEY,
        "times_late": _KEY,
    },
    "diff_summary": {
        **dict.fromkeys(("a_step_ns", "b_step_ns"), _KEY),
        **dict.fromkeys(("low_ns", "high_ns", "p_value"), _REAL),
        "unit": _TEXT,
        "is_whole_trace": 0,
        **{f"{side}_{name}": 0 for side in ("a", "b") for name in ("steps", "left_out", "ranks")},
    },
    "diff_changes": {
        "class": _TEXT,
        "kind": _TEXT,
        "name": _NAME,
        "a_ns": _KEY,
        "b_ns": _KEY,
        "delta_ns": _KEY,
    },
    "diff_classes": {"class": _NAME, "a_ns": _KEY, "b_ns": _KEY, "delta_ns": _KEY},
    "diff_ranks": {"rank": _KEY, "is_slower": _KEY},
    "diff_ops": {"kind": _NAME, "name": _NAME, "status": _NAME},
    "diff_kernels": {"kind": _NAME, "name": _NAME, "status": _NAME},
}


def read_table(summary: TraceSummary, name: str) -> Table:
    """Read a table as rules need it.

    Args:
        summary: The traces.
        name: The name of the table, one of `COLUMNS`.

    Returns:
        The table with the columns of `COLUMNS` first, in that order. Without rows when it is
        missing, or lacks a column that it says nothing without.
    """
    wanted, table = COLUMNS[name], summary.get(name)
    keys = {column for column, unknown in wanted.items() if isinstance(unknown, _Key)}
    is_there = keys <= set(table.columns)
    found = table.columns if is_there else {}
    count = len(table) if is_there else 0
    made = {
        column: found[column] if column in found else _fill(unknown, count)
        for column, unknown in wanted.items()
    }
    return Table(made | dict(found))


def has_columns(summary: TraceSummary, name: str) -> bool:
    """Tell whether a table is there with each column that rules read of it."""
    return set(COLUMNS[name]) <= set(summary.get(name).columns)


def _fill(unknown: _Default, count: int) -> Column:
    value = unknown.value if isinstance(unknown, _Key) else unknown
    return text_column([value] * count) if isinstance(value, str) else np.full(count, value)
