"""What torch's memory profiler wrote: the bytes of each kind of tensor over time."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import decode_json
from whystuck.parse.errors import ParseError

# As `torch.profiler._memory_profiler` numbers them.
CATEGORIES = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)
_ACTIONS = range(1, 5)  # was there before, created, another version, freed
_FIELDS = 4
_MAX_BYTES = 2**50


def _no_points() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_sizes() -> NDArray[np.int64]:
    return np.empty((0, len(CATEGORIES)), dtype=np.int64)


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory of one device over time.

    Attributes:
        time_ns: On the host's clock, in the order of the file; what was there before the first
            event is the first point, at the time of that event.
        sizes: Bytes by time and category, in the order of `CATEGORIES`, int64.
    """

    time_ns: NDArray[np.int64] = field(default_factory=_no_points)
    sizes: NDArray[np.int64] = field(default_factory=_no_sizes)

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def peak_bytes(self) -> int:
        """The most memory at any time, in bytes; 0 when there is none."""
        return int(self.sizes.sum(axis=1).max(initial=0))


def parse_memory_timeline(data: bytes) -> MemoryTimeline:
    """Parse ``memory_timeline.raw.json``.

    torch writes it from ``export_memory_timeline`` of its profiler: a list of time in ns (-1 for
    what was there before), action, change in bytes, and category. Events of one time are one point.

    Args:
        data: The content of the file, unpacked.

    Returns:
        The memory over time.

    Raises:
        ParseError: It is no such file.
    """
    try:
        rows = decode_json(data, list[tuple[int, int, int, int]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"it is no raw memory timeline ({error})") from error
    try:
        events = np.array(rows, dtype=np.int64).reshape(-1, _FIELDS)
    except OverflowError as error:
        raise ParseError("it has numbers of more than 64 bits") from error
    if not len(events):
        return MemoryTimeline()
    time, action, size, category = events.T
    _check(action, size, category)
    known = time[time > 0]
    is_last = np.r_[time[1:] != time[:-1], True]
    sizes = np.zeros((int(is_last.sum()), len(CATEGORIES)), dtype=np.int64)
    point = np.cumsum(np.r_[False, is_last[:-1]])
    np.add.at(sizes, (point, category), size)
    time = np.where(time < 0, int(known.min()) if len(known) else 0, time)
    return MemoryTimeline(time[is_last], np.cumsum(sizes, axis=0))


def _check(action: NDArray[np.int64], size: NDArray[np.int64], category: NDArray[np.int64]) -> None:
    if not np.isin(action, _ACTIONS).all():
        raise ParseError(f"it has an unknown action ({int(action[~np.isin(action, _ACTIONS)][0])})")
    if ((category < 0) | (category >= len(CATEGORIES))).any():
        raise ParseError("it has an unknown category")
    if (np.abs(size) > _MAX_BYTES).any():
        raise ParseError("it has a size that no memory has")
