"""A plain reader of traces, slow and short, to compare the fast one with."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from whystuck.evidence.traces.events import SPARSE_NAMES, Category, Trace
from whystuck.parse.traces.schema import CATEGORIES

Row = dict[str, Any]
DEVICE = range(Category.KERNEL, Category.SYNC + 1)


def read_plain(text: str) -> list[Row]:
    """Rows of the events of a trace, with absolute times; texts in place of positions."""
    root = json.loads(text, parse_float=Decimal)
    return [row for event in root["traceEvents"] if (row := make_row(event)) is not None]


def make_row(event: dict[str, Any]) -> Row | None:
    args = event.get("args") or {}
    category = CATEGORIES.get(event.get("cat", "").lower(), Category.OTHER)
    is_memory = event["ph"] == "i" and event.get("name") == "[memory]"
    if is_memory:
        category = Category.MEMORY
    elif event["ph"] != "X" or "dur" not in event or event["dur"] < 0:
        return None
    row = {
        "start_ns": int(event["ts"] * 1000),
        "duration_ns": int(event.get("dur", 0) * 1000),
        "name": event["name"],
        "category": category,
        "pid": event["pid"],
        "tid": event["tid"],
        "device": args.get("device", event["pid"]) if category in DEVICE else -1,
        "stream": args.get("stream", event["tid"]) if category in DEVICE else -1,
        "correlation": args.get("correlation", -1),
        "external": args.get("External id", -1),
    }
    for name, key in SPARSE_NAMES.items():
        if key in args:
            row[name] = _plain(args[key]) if name.endswith(":text") else float(args[key])
    return row


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def rows_of(trace: Trace) -> list[Row]:
    """The same rows, of a trace that was read; ids that were texts are texts again."""
    columns = {name: column.tolist() for name, column in vars(trace.events).items()}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    for row in rows:
        row["start_ns"] += trace.base_ns
        row["name"] = trace.names[row["name"]]
    for name, sparse in trace.sparse.items():
        for at, value in zip(sparse.event.tolist(), sparse.value.tolist(), strict=True):
            rows[at][name] = trace.texts[value] if name.endswith(":text") else float(value)
    return rows
