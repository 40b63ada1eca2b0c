"""The ops, annotations or Python frames of the host as trees, and what lies in which of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category, TraceEvents, is_one_of
from whystuck.tracing.arrays.nesting import Nesting, nest

Rows = NDArray[np.int64]

_HALF = 32  # bits of a thread id in the key of a thread


def thread_keys(events: TraceEvents, rows: Rows) -> NDArray[np.int64]:
    """Return a number for the process and thread of each row."""
    pid, tid = events.pid[rows].astype(np.int64), events.tid[rows].astype(np.int64)
    keys: NDArray[np.int64] = (pid << _HALF) + tid
    return keys


@cache
def _plant_nothing() -> HostTree:
    none = np.empty(0, dtype=np.int64)
    return HostTree(nest(none, none, none), none, none)


@dataclass(frozen=True)
class HostTree:
    """Events of the host by thread and time, and how they lie in each other.

    Attributes:
        nesting: The tree.
        row: The row in the trace of each place in the tree.
        threads: The key of each thread of the tree, ascending.
    """

    nesting: Nesting
    row: Rows
    threads: NDArray[np.int64]

    @classmethod
    def of(cls, events: TraceEvents, categories: tuple[Category, ...]) -> HostTree:
        """Make the tree of all events of some categories."""
        return cls.of_rows(events, np.flatnonzero(is_one_of(events.category, categories)))

    @classmethod
    def of_rows(cls, events: TraceEvents, rows: Rows) -> HostTree:
        """Make the tree of some rows."""
        if not len(rows):
            return _plant_nothing()
        # An annotation around an op of the same time holds it: it comes first.
        is_op = events.category[rows] == Category.CPU_OP
        rows = rows[np.argsort(is_op, kind="stable")]
        threads, number = np.unique(thread_keys(events, rows), return_inverse=True)
        start = events.start_ns[rows]
        nesting = nest(number.astype(np.int64), start, start + events.duration_ns[rows])
        return cls(nesting, rows[nesting.row], threads)

    def __len__(self) -> int:
        return len(self.row)

    def find(self, events: TraceEvents, rows: Rows) -> Rows:
        """Find the deepest event around the start of others on their threads.

        Args:
            events: Those of the trace.
            rows: Rows of the trace; -1 for none.

        Returns:
            A place in the tree for each, or -1.
        """
        known = np.maximum(rows, 0)
        if not len(self) or not len(events):
            return np.full(len(rows), -1, dtype=np.int64)
        keys = thread_keys(events, known)
        number = np.minimum(np.searchsorted(self.threads, keys), len(self.threads) - 1)
        number = np.where((self.threads[number] == keys) & (rows >= 0), number, -1)
        return self.nesting.deepest(number.astype(np.int64), events.start_ns[known])

    def rows_at(self, places: Rows) -> Rows:
        """Return the rows of the trace of places; -1 where there is none."""
        if not len(self):
            return np.full(len(places), -1, dtype=np.int64)
        return np.where(places >= 0, self.row[places], -1)

    def places_of(self, rows: Rows) -> Rows:
        """Return the place of each row of the trace that is in the tree, else -1."""
        if not len(self):
            return np.full(len(rows), -1, dtype=np.int64)
        order = np.argsort(self.row, kind="stable")
        at = np.minimum(np.searchsorted(self.row[order], rows), len(self) - 1)
        return np.where(self.row[order][at] == rows, order[at], -1)

    def find_launching(self, events: TraceEvents, work: Rows, launches: Rows) -> Rows:
        """Find the deepest event from which work of devices was launched.

        It is the one around the launch. Where the launch is not in the trace, it is the op of the
        same external id.

        Args:
            events: Those of the trace.
            work: Rows of device work.
            launches: The row of the launch of each, or -1.

        Returns:
            A place in the tree for each, or -1.
        """
        places = self.find(events, launches)
        alone = np.flatnonzero((launches < 0) & (events.external[work] > 0))
        if not len(alone) or not len(self):
            return places
        known = np.flatnonzero(events.external[self.row] > 0)
        if not len(known):
            return places
        known = known[np.argsort(events.external[self.row[known]], kind="stable")]
        ids, wanted = events.external[self.row[known]], events.external[work[alone]]
        at = np.minimum(np.searchsorted(ids, wanted), len(known) - 1)
        places[alone] = np.where(ids[at] == wanted, known[at], -1)
        return places
