"""The streams of devices, and what ran on each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.arrays.segments import number_codes

Whole = NDArray[np.int64]

_DENSE = 1 << 16


@dataclass(frozen=True)
class Queues:
    """Streams by device and number; ``place`` tells for each piece of work which it ran on."""

    device: Whole
    stream: Whole
    place: Whole

    def __len__(self) -> int:
        return len(self.device)


def make_queues(device: Whole, stream: Whole) -> Queues:
    """List the streams on which work ran.

    Args:
        device: The device of each piece of work.
        stream: Its stream.

    Returns:
        The streams, by device and number.
    """
    if not len(device):
        return Queues(device, stream, device)
    low, least = int(device.min()), int(stream.min())
    width = int(stream.max()) - least + 1
    # Numbers of devices and streams are mostly small, so that there is no need to sort.
    size = width * (int(device.max()) - low + 1)
    if size <= _DENSE:
        found, place = number_codes((device - low) * width + (stream - least), size)
        return Queues(found // width + low, found % width + least, place)
    order = np.lexsort((stream, device))
    ordered = device[order], stream[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return Queues(ordered[0][is_new], ordered[1][is_new], place)
