"""The streams of devices, and what ran on each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


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
    order = np.lexsort((stream, device))
    ordered = device[order], stream[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return Queues(ordered[0][is_new], ordered[1][is_new], place)
