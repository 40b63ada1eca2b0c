"""The columns of the entries of dumps, as arrays of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from whystuck.evidence.collectives import BoolColumn, IntColumn


@dataclass
class Columns:
    """One value for each entry; ``group``, ``form`` and ``site`` are numbers of a vocabulary."""

    group: IntColumn
    seq: IntColumn
    form: IntColumn
    site: IntColumn
    record: IntColumn
    created_ns: IntColumn
    started_ns: IntColumn
    completed_ns: IntColumn
    timeout_ms: IntColumn
    is_p2p: BoolColumn
    started: BoolColumn
    done: BoolColumn

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.seq)

    def take(self, rows: IntColumn) -> None:
        """Put rows in another order."""
        for column in fields(self):
            setattr(self, column.name, getattr(self, column.name)[rows])


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Put columns one after the other.

    Args:
        parts: At least one.

    Returns:
        One long set of columns.
    """
    return Columns(
        **{
            column.name: np.concatenate([getattr(part, column.name) for part in parts])
            for column in fields(Columns)
        }
    )
