"""A line of Docker, or of a logger that writes JSON."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.times import Stamp, read_stamp

MAX_PID = 1 << 22  # larger numbers are threads
_TEXT = ("log", "message", "msg", "text", "event")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime")
_NODE = ("host", "hostname", "node", "node_name", "pod", "pod_name", "podName")


class JsonFields(TypedDict):
    """What such a line says: its text, and of whom it is."""

    text: str
    stamp: Stamp | None
    node: str
    rank: int
    local: int
    pid: int


def read_json(line: str) -> JsonFields | None:
    """Read the fields of a line; None where it has no text of its own."""
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    text = next((fields[key] for key in _TEXT if isinstance(fields.get(key), str)), None)
    if text is None:
        return None
    stamp = None
    for key in _TIME:
        if isinstance(value := fields.get(key), str) and (stamp := read_stamp("iso", value)):
            break
    inner = fields.get("kubernetes")
    told = {**inner, **fields} if isinstance(inner, dict) else fields
    node = next((told[key] for key in _NODE if isinstance(told.get(key), str)), "")
    return JsonFields(
        text=text.rstrip("\r\n"),
        stamp=stamp,
        node=node[:200],
        rank=_number(fields.get("rank"), MAX_RANK, UNKNOWN_RANK),
        local=_number(fields.get("local_rank"), MAX_RANK, -1),
        pid=_number(fields.get("pid", fields.get("process")), MAX_PID, 0),
    )


def _number(value: object, largest: int, other: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:  # noqa: PLR2004
        value = int(value)
    return value if type(value) is int and 0 <= value <= largest else other
