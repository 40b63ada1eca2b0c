"""S310 by tables of profilers: kernels of communication take most of the time of a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Of the time of a device, in percent.
_BOUND = 50.0
_COMPARE = (
    "compare the same table of each rank: one whose kernels of communication take less time is "
    "late, and the others wait for it"
)
# NCCL, RCCL, oneCCL and HCCL
_KERNEL = re.compile(r"\b(?:nccl|rccl|mscclpp?)(?:Dev)?_?[Kk]ernel|\boneccl_|\bhcom_|\bHcom")
_OPS = re.compile(
    r"All(?:Reduce|Gather|ToAll)|ReduceScatter|SendRecv|Broadcast|hcom_\w{1,30}", re.IGNORECASE
)


def make_kernel_shares(view: LogView) -> Iterator[Case]:
    """Make the case of devices that communicate for half of the time of all kernels or more.

    A kernel of communication runs until the last rank has come as well: it is only possible then,
    and not told where one table has a lower share, as that may be the rank the others wait for.
    """
    tables: dict[tuple[str, str], list[LogEvent]] = {}
    for row in view.list_signatures("table.kernel"):
        tables.setdefault((row.artifact, row.groups["table"]), []).append(row)
    told = [
        [row for row in rows if _KERNEL.search(row.groups["kernel"])] for rows in tables.values()
    ]
    shares = [sum(map(_read_share, rows)) for rows in told]
    if not shares or min(shares) < _BOUND:
        return
    share, rows = min(zip(shares, told, strict=True), key=lambda one: one[0])
    yield Case(
        code=codes.COMMUNICATION_BOUND,
        summary=f"kernels of communication take {share:.0f} % of the time of the device"
        f"{_name_ops(rows)}: ranks wait for transfers, or in them for a rank that is late",
        tier=NOTE,
        lines=tuple(rows[:_MAX_LINES]),
        time=find_time(rows),
        confidence=Confidence.POSSIBLE,
        remedies=(_COMPARE,),
    )


def _read_share(row: LogEvent) -> float:
    return float(row.groups["share"])


def _name_ops(rows: Sequence[LogEvent]) -> str:
    """Name the op that takes most of it."""
    most = max(rows, key=_read_share)
    op = _OPS.search(most.groups["kernel"])
    return f", most of it in {op[0]}" if op else ""
