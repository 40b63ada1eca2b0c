"""What NCCL's inspector plugin logs of the ops of a process: sizes, and times on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


def _no_rows() -> Column:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class NcclComm:
    """A communicator as one process knew it: ``rank`` is its place in it, ``size`` all members."""

    hash: str
    rank: int
    size: int
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class NcclLog:
    """One file of the inspector, with a row for each op that ended.

    ``comm`` and ``op`` index ``comms`` and ``ops``, whose names are those of the op log. ``number``
    counts the ops of one kind in a communicator, ``size_bytes`` is that of the whole buffer, as in
    nccl-tests, and ``time_us`` how long the kernel ran, -1 where only the host was timed.
    ``dropped`` ops are missing, as the plugin or its reader had no room, and ``broken`` lines could
    not be read.
    """

    comms: tuple[NcclComm, ...] = ()
    ops: tuple[str, ...] = ()
    comm: Column = field(default_factory=_no_rows)
    op: Column = field(default_factory=_no_rows)
    number: Column = field(default_factory=_no_rows)
    size_bytes: Column = field(default_factory=_no_rows)
    time_us: Column = field(default_factory=_no_rows)
    dropped: int = 0
    broken: int = 0
    artifact: str = ""

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.comm)
