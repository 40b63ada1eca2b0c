"""The last entries of flight recorders that people print as tables, as what ranks say they wait in.

Of each rank, the last entry of a group tells where it is: in that op, or behind it.
"""

from __future__ import annotations

import re

from whystuck.diagnose.logs.told_ops import ToldGroup, ToldOp, ToldStatus
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ops.names import find_op_name

_OVER = "completed"
_SHAPE = re.compile(r"\[([\d, ]*)\]")


def list_entry_groups(view: LogView) -> list[ToldGroup]:
    """List the groups whose entries stand in tables; each rank is where its last entry is."""
    last: dict[tuple[str, int], LogEvent] = {}
    for event in view.list_signatures("table.entry"):
        key = event.groups["group"], event.rank
        known = last.get(key)
        if known is None or _read_seq(known) <= _read_seq(event):
            last[key] = event
    groups: dict[str, ToldGroup] = {}
    for (name, rank), event in sorted(last.items(), key=lambda item: item[0]):
        group = groups.setdefault(name, ToldGroup(name, is_sure=True))
        seq = _read_seq(event)
        op = find_op_name(event.groups["op"].lower())
        # Where rows are counted, entries of one number may be of different calls.
        is_numbered = not event.groups.get("is_counted")
        dtype = (event.groups.get("dtype") or "") * is_numbered
        sizes = (_read_shape(event) if is_numbered else (),) * 2
        told = ToldOp(rank, op, seq, event, sizes, group=name, enqueued=seq, dtype=dtype)
        if event.groups["state"] == _OVER:
            group.statuses[rank] = ToldStatus(rank, name, seq, seq, seq, event)
            group.over[rank] = told
        else:
            group.ops[rank] = told
    return list(groups.values())


def _read_shape(event: LogEvent) -> tuple[int, ...]:
    """Return the shape of the one tensor of an entry, none where it has none, or several."""
    shapes = _SHAPE.findall(event.groups.get("sizes") or "")
    return tuple(map(int, re.findall(r"\d{1,18}", shapes[0]))) if len(shapes) == 1 else ()


def _read_seq(event: LogEvent) -> int:
    return int(event.groups["seq"][:18])


def list_sites(event: LogEvent) -> list[Frame]:
    """List the frames that an entry has, the innermost first."""
    rows = (event.groups.get("sites") or "").split("\n")
    frames = (row.split("\t") for row in rows if row.count("\t") == 2)  # noqa: PLR2004
    return [Frame(function, file, int(line)) for file, line, function in frames]
