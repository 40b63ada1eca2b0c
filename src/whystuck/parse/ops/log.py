"""The op log of one rank: a header, values, and a ring of records; see `docs/op-log.md`.

A file may be taken from a job that writes it, from one that was killed, or from a stranger: every
number in it is checked, and a record that is not whole is left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import CallSite
from whystuck.evidence.ops.log import TIMES, Column, OpGroup, OpNote, OpShape, OpThread
from whystuck.parse.ops.header import LARGEST, RankLog, read_header
from whystuck.parse.ops.values import Used, Values, read_values

MAGIC = b"WSOPS001"
WHAT = "op log"

_RECORD = np.dtype(
    [
        ("number", "<u8"),
        ("enqueued_ns", "<i8"),
        ("returned_ns", "<i8"),
        ("started_ns", "<i8"),
        ("pending_ns", "<i8"),
        ("done_ns", "<i8"),
        ("seq", "<u8"),
        ("form", "<u4"),
        ("site", "<u4"),
        ("group", "<u2"),
        ("thread", "<u2"),
        ("flags", "<u4"),
        ("step", "<u8"),
        ("extra", "<u8"),
        ("again", "<u8"),
    ]
)
# The columns that refer to values.
_VALUES = ("group", "form", "site", "thread")


@dataclass(frozen=True, kw_only=True)
class RankOps(RankLog):
    """One op log; times that are unknown are 0.

    ``columns`` are those of `evidence.ops.Ops` but ``rank`` and ``log``. Groups, forms, sites and
    threads begin with the unknown one. ``seen_ns`` is until when the log tells all.
    """

    seen_ns: int
    columns: dict[str, Column]
    groups: tuple[OpGroup, ...]
    forms: tuple[OpShape, ...]
    sites: tuple[CallSite, ...]
    threads: tuple[OpThread, ...]
    notes: tuple[OpNote, ...] = ()
    lost_values: int = 0
    is_recording: bool = False

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.columns["number"])


def is_op_log(head: bytes) -> bool:
    """Tell whether a file is an op log from its first bytes."""
    return head.startswith(MAGIC)


def parse_op_log(data: bytes, newest: int | None = None, *, only_used: bool = False) -> RankOps:
    """Read an op log.

    Args:
        data: The file, unpacked.
        newest: Keep only so many records; all when left out. Older ones count as dropped.
        only_used: Whether groups, forms, sites and threads that none of these use are unknown.

    Returns:
        The ops of one process, oldest first.

    Raises:
        ParseError: It is no op log, or its header is damaged.
    """
    header = read_header(data, MAGIC, _RECORD.itemsize, WHAT)
    records = header.read_records(_RECORD, _find_whole, newest)
    values = read_values(header.values, _find_used(records.rows) if only_used else None)
    return RankOps(
        about=header.about,
        first_clock=header.first_clock,
        last_clock=header.last_clock,
        seen_ns=header.seen_ns,
        columns=_make_columns(records.rows, values),
        groups=tuple(values.groups),
        forms=tuple(values.forms),
        sites=tuple(values.sites),
        threads=tuple(values.threads),
        notes=tuple(values.notes),
        dropped=records.dropped,
        torn=records.torn,
        lost_values=values.lost + header.lost_values,
        generation=header.generation,
        step=header.step,
        is_recording=header.state == 1,
    )


def _find_whole(ring: NDArray[Any]) -> NDArray[np.bool_]:
    is_whole: NDArray[np.bool_] = (ring["number"] == ring["again"]) & (ring["seq"] < LARGEST)
    return is_whole


def _find_used(records: NDArray[Any]) -> Used:
    return {name: set(np.unique(records[name]).tolist()) for name in _VALUES}


def _make_columns(records: NDArray[Any], values: Values) -> dict[str, Column]:
    columns = {name: _as_time(records[name]) for name in TIMES}
    columns["number"] = records["number"].astype(np.int64)
    columns["seq"] = records["seq"].astype(np.int64)
    columns["flags"] = records["flags"].astype(np.int64)
    columns["step"] = _as_number(records["step"])
    columns["source"] = _as_number(records["extra"]) - 1
    lists = values.groups, values.forms, values.sites, values.threads
    counts = [len(known) for known in lists]
    for name, count in zip(_VALUES, counts, strict=True):
        numbers = records[name].astype(np.int64)
        columns[name] = np.where(numbers < count, numbers, 0)
    return columns


def _as_time(times: NDArray[Any]) -> Column:
    return np.where((times > 0) & (times < LARGEST), times, 0).astype(np.int64)


def _as_number(numbers: NDArray[Any]) -> Column:
    return np.where(numbers < LARGEST, numbers, 0).astype(np.int64)
