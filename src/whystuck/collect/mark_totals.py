"""How much time the phases of a rank took so far, from the file of marks that it writes."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from whystuck.evidence.ops.marks import KINDS
from whystuck.guarded.folders import folder_at, open_file

_MAGIC = b"WSMARK01"
_TOTALS_AT, _TOTALS = 128, struct.Struct(f"<{2 * len(KINDS)}Q")
# No job lives longer than 300 years.
_MOST = 1 << 63


class PhaseTotal(NamedTuple):
    """The time in phases of one kind that have ended, and how many there were."""

    kind: str
    seconds: float
    ended: int


def read_mark_totals(folder: Path, pid: int) -> tuple[PhaseTotal, ...]:
    """Return the totals of a process of a job, by its pid there; none where nothing is marked."""
    try:
        with folder_at(folder, is_private=True) as opened:
            fd = open_file(opened, f"marks-{pid}", uid=os.fstat(opened).st_uid)
            try:
                data = os.pread(fd, _TOTALS_AT + _TOTALS.size, 0)
            finally:
                os.close(fd)
    except OSError:
        return ()
    return parse_mark_totals(data)


def parse_mark_totals(data: bytes) -> tuple[PhaseTotal, ...]:
    """Read them from the begin of a file; none where it is no such file."""
    if not data.startswith(_MAGIC) or len(data) < _TOTALS_AT + _TOTALS.size:
        return ()
    numbers = _TOTALS.unpack_from(data, _TOTALS_AT)
    if max(numbers) >= _MOST:
        return ()
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return tuple(
        PhaseTotal(kind, spent_ns / 1e9, count)
        for kind, (spent_ns, count) in zip(KINDS, pairs, strict=True)
        if count
    )
