"""The marks that ranks wrote: when each phase of a step began and ended; `docs/marks.md`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

STEP, DATALOADER, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, USER, DEVICE = range(8)
KINDS = ("step", "dataloader", "forward", "backward", "optimizer", "checkpoint", "user", "device")


def _no_rows() -> Column:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class MarkNote:
    """A rank was asked to mark other kinds from then on; ``time_ns`` is the wall clock.

    ``kinds`` are those that it marks from then on, ``step`` the optimizer steps made before.
    """

    kinds: frozenset[int] = frozenset()
    step: int = 0
    generation: int = 0
    time_ns: int = 0


@dataclass(frozen=True)
class MarkLog:
    """One file that was read: whose it is, and what it lost.

    ``dropped`` marks were written over by newer ones, ``torn`` ones are damaged, ``lost_names``
    names could not be kept or read. ``seen_ns`` is the wall clock of the last beat. Logs of one
    ``clock`` have times that can be compared as they stand.
    """

    rank: int
    artifact: str
    host: str = ""
    pid: int = 0
    world_size: int = 0
    dropped: int = 0
    torn: int = 0
    lost_names: int = 0
    generation: int = 0
    step: int = 0
    seen_ns: int = 0
    notes: tuple[MarkNote, ...] = ()
    clock: int = 0


@dataclass(frozen=True)
class Marks:
    """Marks of all ranks, sorted by rank, then by when they began.

    Columns have one value a row. ``log`` and ``name`` index ``logs`` and ``names``, whose first
    name is the empty one. ``kind`` is one of the constants of this module, ``step`` the number of
    optimizer steps made before. Times are wall clock in ns, made comparable as those of op logs;
    ``end_ns`` is 0 while it is not over, and ``begin_ns`` for an instant.
    """

    rank: Column = field(default_factory=_no_rows)
    log: Column = field(default_factory=_no_rows)
    kind: Column = field(default_factory=_no_rows)
    name: Column = field(default_factory=_no_rows)
    step: Column = field(default_factory=_no_rows)
    begin_ns: Column = field(default_factory=_no_rows)
    end_ns: Column = field(default_factory=_no_rows)
    names: tuple[str, ...] = ("",)
    logs: tuple[MarkLog, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)


COLUMNS = ("rank", "log", "kind", "name", "step", "begin_ns", "end_ns")


def slice_ranks(marks: Marks) -> dict[int, slice]:
    """Return the rows of each rank, which lie together."""
    ranks, first = np.unique(marks.rank, return_index=True)
    bounds = pairwise([*first.tolist(), len(marks)])
    return {int(rank): slice(*bound) for rank, bound in zip(ranks, bounds, strict=True)}
