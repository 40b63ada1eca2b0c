"""The op log of one rank: a header, values, and a ring of records; see `docs/op-log.md`.

A file may be taken from a job that writes it, from one that was killed, or from a stranger: every
number in it is checked, and a record that is not whole is left out and counted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.ops.collectives import CallSite
from whystuck.evidence.ops.log import TIMES, Column, OpGroup, OpNote, OpShape, OpThread
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.values import Values, read_values

MAGIC = b"WSOPS001"

_HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQ")
_LOOKED = struct.Struct("<q")
_LOOKED_AT = 120
_ABOUT, _ABOUT_LENGTH = 512, struct.Struct("<I")
_MAX_ABOUT_BYTES = 65536
_MIN_RECORD_BYTES, _MAX_RECORD_BYTES = 96, 4096
_MAX_VALUES_BYTES = 16 * 1024 * 1024
# Times and numbers above this are no times and numbers of a job.
_LARGEST = 1 << 61
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


class About(msgspec.Struct, kw_only=True):
    """The JSON of the header: which process wrote the log."""

    rank: int = -1
    world_size: int = 0
    host: str = ""
    pid: int = 0
    python: str = ""
    torch: str = ""
    method: str = ""


@dataclass(frozen=True)
class Clock:
    """A moment in ns, on the monotonic clock of the host and on its wall clock."""

    monotonic_ns: int
    wall_ns: int

    @property
    def offset_ns(self) -> int:
        """What to add to the monotonic clock to get the wall clock."""
        return self.wall_ns - self.monotonic_ns


@dataclass(frozen=True)
class RankOps:
    """One op log; times are still those of the host's monotonic clock, 0 when unknown.

    ``columns`` are those of `evidence.ops.Ops` but ``rank`` and ``log``. Groups, forms, sites and
    threads begin with the unknown one. ``seen_ns`` is until when the log tells all.
    """

    about: About
    first_clock: Clock
    last_clock: Clock
    seen_ns: int
    columns: dict[str, Column]
    groups: tuple[OpGroup, ...]
    forms: tuple[OpShape, ...]
    sites: tuple[CallSite, ...]
    threads: tuple[OpThread, ...]
    notes: tuple[OpNote, ...] = ()
    dropped: int = 0
    torn: int = 0
    lost_values: int = 0
    generation: int = 0
    step: int = 0
    is_recording: bool = False

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.columns["number"])


def is_op_log(head: bytes) -> bool:
    """Tell whether a file is an op log from its first bytes."""
    return head.startswith(MAGIC)


def parse_op_log(data: bytes, newest: int | None = None) -> RankOps:
    """Read an op log.

    Args:
        data: The file, unpacked.
        newest: Keep only so many records; all when left out. Older ones count as dropped.

    Returns:
        The ops of one process, oldest first.

    Raises:
        ParseError: It is no op log, or its header is damaged.
    """
    header = _read_header(data)
    values = read_values(header.values)
    records, torn, dropped = _read_records(header)
    if newest is not None and len(records) > newest:
        dropped += len(records) - newest
        records = records[-newest:] if newest else records[:0]
    return RankOps(
        about=header.about,
        first_clock=header.first_clock,
        last_clock=header.last_clock,
        seen_ns=header.seen_ns,
        columns=_make_columns(records, values),
        groups=tuple(values.groups),
        forms=tuple(values.forms),
        sites=tuple(values.sites),
        threads=tuple(values.threads),
        notes=tuple(values.notes),
        dropped=dropped,
        torn=torn,
        lost_values=values.lost + header.lost_values,
        generation=header.generation,
        step=header.step,
        is_recording=header.is_recording,
    )


@dataclass(frozen=True)
class _Header:
    about: About
    first_clock: Clock
    last_clock: Clock
    seen_ns: int
    values: memoryview
    ring: memoryview
    record_bytes: int
    capacity: int
    lost_values: int
    generation: int
    step: int
    is_recording: bool


def _read_header(data: bytes) -> _Header:
    if not is_op_log(data):
        raise ParseError("not an op log")
    if len(data) < _ABOUT + _ABOUT_LENGTH.size:
        raise ParseError(f"an op log of {len(data)} bytes has no header")
    (_, _, record_bytes, capacity, values_at, values_size, ring_at, used, lost, *rest) = (
        _HEADER.unpack_from(data)
    )
    monotonic, wall, last_monotonic, last_wall, generation, is_on, step = rest
    if not _MIN_RECORD_BYTES <= record_bytes <= _MAX_RECORD_BYTES:
        raise ParseError(f"records of {record_bytes} bytes")
    if not capacity or ring_at > len(data):
        raise ParseError("the op log has no room for records")
    if values_at > len(data) or values_size > _MAX_VALUES_BYTES:
        raise ParseError(f"values of {values_size} bytes at {values_at}")
    view = memoryview(data)
    first = Clock(_limit(monotonic), _limit(wall))
    last = Clock(_limit(last_monotonic), _limit(last_wall))
    last = last if last.monotonic_ns > first.monotonic_ns else first
    looked_ns = _limit(*_LOOKED.unpack_from(data, _LOOKED_AT))
    return _Header(
        about=_read_about(data),
        first_clock=first,
        last_clock=last,
        # Ops that were issued after that look may not be on record.
        seen_ns=min(looked_ns, last.monotonic_ns) if looked_ns else last.monotonic_ns,
        values=view[values_at : values_at + min(used, values_size)],
        ring=view[ring_at : ring_at + min(capacity * record_bytes, len(data))],
        record_bytes=record_bytes,
        capacity=capacity,
        lost_values=_limit(lost),
        generation=_limit(generation),
        step=_limit(step),
        is_recording=is_on == 1,
    )


def _limit(number: int) -> int:
    return number if 0 <= number < _LARGEST else 0


def _read_about(data: bytes) -> About:
    """Read who wrote the log; a text that was being written tells nothing."""
    (length,) = _ABOUT_LENGTH.unpack_from(data, _ABOUT)
    start = _ABOUT + _ABOUT_LENGTH.size
    if length > _MAX_ABOUT_BYTES:
        return About()
    try:
        return decode_json(data[start : start + length], About)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return About()


def _read_records(header: _Header) -> tuple[NDArray[Any], int, int]:
    """Return the whole records, oldest first; how many are torn, and how many were written over."""
    count = min(len(header.ring) // header.record_bytes, header.capacity)
    # Records of a newer version are longer; what they begin with stays.
    cells = np.frombuffer(header.ring, dtype=np.uint8, count=count * header.record_bytes)
    cells = cells.reshape(count, header.record_bytes)[:, : _RECORD.itemsize]
    ring = np.ascontiguousarray(cells).view(_RECORD).ravel()
    number = ring["number"]
    slots = np.arange(count, dtype=np.uint64)
    is_whole = (
        (number > 0)
        & (number == ring["again"])
        & (number < _LARGEST)
        & (ring["seq"] < _LARGEST)
        & ((number - np.uint64(1)) % np.uint64(header.capacity) == slots)
    )
    newest = int(number[is_whole].max(initial=0))
    dropped = max(0, newest - header.capacity)
    # A slot whose writer was held up still has the record of the round before.
    is_kept = is_whole & (number > dropped)
    rows = np.flatnonzero(is_kept)
    rows = rows[np.argsort(number[rows], kind="stable")]
    return ring[rows], newest - dropped - len(rows), dropped


def _make_columns(records: NDArray[Any], values: Values) -> dict[str, Column]:
    columns = {name: _as_time(records[name]) for name in TIMES}
    columns["number"] = records["number"].astype(np.int64)
    columns["seq"] = records["seq"].astype(np.int64)
    columns["flags"] = records["flags"].astype(np.int64)
    columns["step"] = _as_number(records["step"])
    columns["source"] = _as_number(records["extra"]) - 1
    for name, known in (
        ("group", values.groups),
        ("form", values.forms),
        ("site", values.sites),
        ("thread", values.threads),
    ):
        numbers = records[name].astype(np.int64)
        columns[name] = np.where(numbers < len(known), numbers, 0)
    return columns


def _as_time(times: NDArray[Any]) -> Column:
    return np.where((times > 0) & (times < _LARGEST), times, 0).astype(np.int64)


def _as_number(numbers: NDArray[Any]) -> Column:
    return np.where(numbers < _LARGEST, numbers, 0).astype(np.int64)
