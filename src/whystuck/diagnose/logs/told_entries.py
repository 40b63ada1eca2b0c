"""The last entries of flight recorders that people print as tables, as what ranks say they wait in.

Of each rank, the last entry of a group tells where it is: in that op, or behind it.
"""

from __future__ import annotations

from whystuck.diagnose.logs.told_ops import ToldGroup, ToldOp, ToldStatus
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.names import find_op_name

_OVER = "completed"


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
        if event.groups["state"] == _OVER:
            group.statuses[rank] = ToldStatus(rank, name, seq, seq, seq, event)
        else:
            op = find_op_name(event.groups["op"].lower())
            group.ops[rank] = ToldOp(rank, op, seq, event, group=name, enqueued=seq)
    return list(groups.values())


def _read_seq(event: LogEvent) -> int:
    return int(event.groups["seq"][:18])
