"""Memory in which a worker leaves columns for the process that has started it.

What goes through a pipe is copied four times; what is left here is copied once, to its last place.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.parse.dumps.fast.columns import Columns

_ALIGNMENT = 64
# All of them together fit into a signed number of eight bytes.
_NARROW = (np.uint8, np.uint16, np.int32)


@dataclass(frozen=True)
class Place:
    """Where on a shelf a column lies."""

    dtype: str
    offset: int
    count: int


Places = dict[str, Place]


class SharedColumns:
    """Memory that is shared with the processes that are forked afterwards.

    It takes none before something is left there, and is given back when nobody looks at it.
    """

    def __init__(self, size: int) -> None:
        """Set it up.

        Args:
            size: How many bytes fit on it.
        """
        self._memory = mmap.mmap(-1, max(1, size))

    def put(self, columns: Columns) -> Places | None:
        """Put columns there, as narrow as their values allow: memory that is new takes long.

        Args:
            columns: What to put there.

        Returns:
            Where they lie, or None when there is no room.
        """
        places: Places = {}
        end = 0
        for column in fields(Columns):
            values = _narrow(getattr(columns, column.name))
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = offset + values.nbytes
            if end > len(self._memory):
                return None
            places[column.name] = Place(values.dtype.str, offset, len(values))
            self._look(places[column.name])[:] = values
        return places

    def get(self, places: Places) -> Columns:
        """Look at columns that were left there.

        Args:
            places: Where they lie.

        Returns:
            The columns, as they lie there.
        """
        return Columns(**{name: self._look(place) for name, place in places.items()})

    def _look(self, place: Place) -> NDArray[Any]:
        return np.frombuffer(self._memory, place.dtype, place.count, place.offset)


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    if len(values) == 0 or values.dtype.kind != "i":
        return values
    least, most = int(values.min()), int(values.max())
    for kind in _NARROW:
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
