"""The header of a mapped log, and its ring: of op logs, and of marks; see `docs/op-log.md`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import decode_json
from whystuck.parse.errors import ParseError

# Times and numbers above this are no times and numbers of a job.
LARGEST = 1 << 61
_HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQ")
# The places of its fields.
_RECORD_BYTES, _CAPACITY, _VALUES_AT, _VALUES_SIZE, _RING_AT, _USED = range(2, 8)
HEADER_BYTES = 4096
_LOOKED = struct.Struct("<q")
_LOOKED_AT = 120
_ABOUT, _ABOUT_LENGTH = 512, struct.Struct("<I")
_MAX_ABOUT_BYTES = 65536
_MAX_RECORD_BYTES = 4096
_MAX_VALUES_BYTES = 16 * 1024 * 1024


class About(msgspec.Struct, kw_only=True):
    """The JSON of the header: which process wrote the log."""

    rank: int = -1
    world_size: int = 0
    host: str = ""
    network: str = ""
    interface: str = ""
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
class Header:
    """The header of a mapped log, and the regions that it names."""

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
    state: int

    def read_records(
        self,
        record: np.dtype[Any],
        find_whole: Callable[[NDArray[Any]], NDArray[np.bool_]],
        newest: int | None = None,
    ) -> Records:
        """Read the records that are whole, and lie where their number says.

        Args:
            record: The fields of one; records of a newer version are longer.
            find_whole: Which of all places may hold a whole one.
            newest: Keep only so many; all when left out. Older ones count as dropped.
        """
        count = min(len(self.ring) // self.record_bytes, self.capacity)
        cells = np.frombuffer(self.ring, dtype=np.uint8, count=count * self.record_bytes)
        cells = cells.reshape(count, self.record_bytes)[:, : record.itemsize]
        ring = np.ascontiguousarray(cells).view(record).ravel()
        number = ring["number"]
        slots = np.arange(len(ring), dtype=np.uint64)
        is_here = (number - np.uint64(1)) % np.uint64(self.capacity) == slots
        is_whole = find_whole(ring) & (number > 0) & (number < LARGEST) & is_here
        last = int(number[is_whole].max(initial=0))
        dropped = max(0, last - self.capacity)
        # A slot whose writer was held up still has the record of the round before.
        rows = np.flatnonzero(is_whole & (number > dropped))
        rows = rows[np.argsort(number[rows], kind="stable")]
        torn = last - dropped - len(rows)
        passed = max(0, len(rows) - newest) if newest is not None else 0
        return Records(ring[rows[passed:]], dropped + passed, torn)


@dataclass(frozen=True)
class Records:
    """Records of a ring, oldest first; how many were written over or passed over, or are torn."""

    rows: NDArray[Any]
    dropped: int
    torn: int


@dataclass(frozen=True, kw_only=True)
class RankLog:
    """A log of one rank, of ops or of marks; its times are those of the host's monotonic clock."""

    about: About
    first_clock: Clock
    last_clock: Clock
    dropped: int = 0
    torn: int = 0
    generation: int = 0
    step: int = 0


L_co = TypeVar("L_co", bound=RankLog, covariant=True)


@dataclass(frozen=True)
class LogFile(Generic[L_co]):
    """A log that was read, whose it is and what to cite."""

    rank: int
    artifact: str
    log: L_co


def replace_ring(data: bytes, ring: bytes, capacity: int) -> bytes:
    """Return a log with the values that are used, and another ring after them."""
    fields = list(_HEADER.unpack_from(data))
    values_at = fields[_VALUES_AT]
    # A damaged header may name more than there is.
    values = data[values_at : values_at + min(fields[_USED], fields[_VALUES_SIZE])]
    used = len(values)
    head = bytearray(data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))
    fields[_RECORD_BYTES], fields[_CAPACITY] = len(ring) // capacity, capacity
    fields[_VALUES_AT : _RING_AT + 1] = [HEADER_BYTES, used, HEADER_BYTES + used]
    _HEADER.pack_into(head, 0, *fields)
    return bytes(head) + values + ring


def measure_log(data: bytes) -> int:
    """Return how many bytes a log has that begins with some data, 128 bytes at least."""
    fields = _HEADER.unpack_from(data)
    return int(fields[_RING_AT] + fields[_CAPACITY] * fields[_RECORD_BYTES])


def read_header(data: bytes, magic: bytes, least_bytes: int, what: str) -> Header:
    """Read a header.

    Args:
        data: The file, unpacked.
        magic: What it begins with.
        least_bytes: Bytes of a record at least.
        what: What the file is called.

    Returns:
        The header.

    Raises:
        ParseError: It is no such file, or its header is damaged.
    """
    if not data.startswith(magic):
        raise ParseError(f"this is no {what}")
    if len(data) < _ABOUT + _ABOUT_LENGTH.size:
        raise ParseError(f"{what}: {len(data)} bytes have no header")
    (_, _, record_bytes, capacity, values_at, values_size, ring_at, used, lost, *rest) = (
        _HEADER.unpack_from(data)
    )
    monotonic, wall, last_monotonic, last_wall, generation, state, step = rest
    if not least_bytes <= record_bytes <= _MAX_RECORD_BYTES:
        raise ParseError(f"records of {record_bytes} bytes")
    if not capacity or ring_at > len(data):
        raise ParseError(f"the {what} has no room for records")
    if values_at > len(data) or values_size > _MAX_VALUES_BYTES:
        raise ParseError(f"values of {values_size} bytes at {values_at}")
    view = memoryview(data)
    first = Clock(_limit(monotonic), _limit(wall))
    last = Clock(_limit(last_monotonic), _limit(last_wall))
    last = last if last.monotonic_ns > first.monotonic_ns else first
    looked_ns = _limit(*_LOOKED.unpack_from(data, _LOOKED_AT))
    return Header(
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
        state=_limit(state),
    )


def _limit(number: int) -> int:
    return number if 0 <= number < LARGEST else 0


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
