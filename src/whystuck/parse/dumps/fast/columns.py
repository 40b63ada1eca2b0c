"""The columns of the entries of dumps, as arrays of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn

# Columns that are needed only while a dump is read.
SCRATCH = ("record", "p2p_seq", "pg_id")


@dataclass
class Columns:
    """One value for each entry; ``group``, ``form`` and ``site`` are numbers of a vocabulary.

    `SCRATCH` is empty when the dump is read.
    """

    group: IntColumn
    seq: IntColumn
    form: IntColumn
    site: IntColumn
    created_ns: IntColumn
    started_ns: IntColumn
    completed_ns: IntColumn
    timeout_ms: IntColumn
    is_p2p: BoolColumn
    started: BoolColumn
    done: BoolColumn
    record: IntColumn
    p2p_seq: IntColumn
    pg_id: IntColumn

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.seq)

    def without_scratch(self) -> Columns:
        """Drop the columns that nothing needs when the dumps are read; narrow the others."""
        nothing = np.empty(0, dtype=np.int64)
        return replace(
            self,
            record=nothing,
            p2p_seq=nothing,
            pg_id=nothing,
            group=_narrow(self.group),
            seq=_narrow(self.seq),
            form=_narrow(self.form),
            site=_narrow(self.site),
            timeout_ms=_narrow(self.timeout_ms),
        )

    def cut(self, first: int, end: int) -> Columns:
        """Return some rows, as a view."""
        return Columns(
            **{column.name: getattr(self, column.name)[first:end] for column in fields(self)}
        )

    def take(self, rows: IntColumn) -> None:
        """Put rows in another order."""
        for column in fields(self):
            values = getattr(self, column.name)
            setattr(self, column.name, values[rows] if len(values) else values)


def _narrow(values: IntColumn) -> IntColumn:
    """Take half the memory where the values allow it."""
    if values.dtype == np.int32:
        return values
    limits = np.iinfo(np.int32)
    if len(values) and (values.max() > limits.max or values.min() < limits.min):
        return values
    return values.astype(np.int32)


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
