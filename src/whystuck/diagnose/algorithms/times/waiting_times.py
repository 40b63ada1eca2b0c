"""Whose device waits least in a collective: whatever the clocks say, it is the last to come.

All members are over a collective at one moment. How long a rank was in it is told by its own clock
alone: from the time at which its device started the op. The time at which the host issued it says
as much only where the device had nothing else to do, which shows in ops that were over before. A
watchdog notices all this up to a tenth of a second late, by a part that differs from op to op:
the mean of many ops is compared, with its error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.evidence.ops.collectives import Collectives

# A watchdog looks this often.
_POLL_NS = 100_000_000
# The rank must wait least in each of so many parts of the time.
_PARTS = 4
# The difference must be so many times its standard error.
_MIN_ERRORS = 4.0
_HALF = 0.5


@dataclass(frozen=True)
class LeastWaiting:
    """The column that waits least, the mean time less than the next one, and how often it does."""

    column: int
    lost_ns: float
    share_least: float


def find_least_waiting(table: Collectives, rows: NDArray[np.int64]) -> LeastWaiting | None:
    """Find the rank whose device waits less than all others.

    Args:
        table: All ops.
        rows: Rows of one call, a line for each time it was made, a column for each rank.

    Returns:
        The rank, or None when no rank stands out, or the times do not tell.
    """
    completed_ns = table.completed_ns[rows]
    if rows.shape[1] < 2 or not completed_ns.all():  # noqa: PLR2004 - nobody to compare with
        return None
    started_ns = table.started_ns[rows]
    has_starts = bool(started_ns.all())
    begun_ns = started_ns if has_starts else table.created_ns[rows]
    waits_ns = (completed_ns - begun_ns).astype(np.float64)
    order = np.argsort(waits_ns.mean(axis=0), kind="stable")
    first, second = int(order[0]), int(order[1])
    lost_ns = float(waits_ns[:, second].mean() - waits_ns[:, first].mean())
    errors_ns = waits_ns[:, [first, second]].std(axis=0) / np.sqrt(len(rows))
    if lost_ns <= _MIN_ERRORS * float(np.hypot(*errors_ns)):
        return None
    for part in np.array_split(waits_ns, _PARTS):
        means = part.mean(axis=0)
        others = np.delete(means, first)
        if others.min() - means[first] < _HALF * lost_ns:
            return None
    if not has_starts and not _was_idle(table, rows[:, first], lost_ns):
        return None
    least = waits_ns[:, first] <= np.delete(waits_ns, first, axis=1).min(axis=1)
    return LeastWaiting(first, lost_ns, float(least.mean()))


@dataclass(frozen=True)
class TotalWait:
    """For how long a rank was in ops, all of them together, and the standard error of that."""

    total_ns: float
    error_ns: float

    def is_below(self, other: TotalWait, least_ns: float) -> bool:
        """Tell whether this is clearly less than another one, by so much at least."""
        gap_ns = other.total_ns - self.total_ns
        return gap_ns >= max(least_ns, _MIN_ERRORS * float(np.hypot(self.error_ns, other.error_ns)))


def measure_waits(table: Collectives, ranks: Iterable[int]) -> dict[int, TotalWait]:
    """Measure for how long ranks were in the ops that are over, in ns of their own clocks."""
    found = {}
    for rank in ranks:
        own = slice_rank(table, rank)
        completed_ns, started_ns = table.completed_ns[own], table.started_ns[own]
        over = completed_ns > 0
        begun_ns = started_ns if (started_ns[over] > 0).all() else table.created_ns[own]
        waits_ns = (completed_ns - begun_ns)[over].astype(np.float64)
        if len(waits_ns):
            error_ns = float(waits_ns.std() * np.sqrt(len(waits_ns)))
            found[rank] = TotalWait(float(waits_ns.sum()), error_ns)
    return found


def _was_idle(table: Collectives, rows: NDArray[np.int64], lost_ns: float) -> bool:
    """Tell whether a rank issued ops when its device had nothing to do.

    The op before was over then, as far as the watchdog had noticed. Where the host runs ahead,
    that is never so.
    """
    before = rows - 1
    is_own = (before >= 0) & (table.rank[before] == table.rank[rows])
    over_ns = np.where(is_own, table.completed_ns[before], 0)
    idle = (over_ns > 0) & (table.created_ns[rows] >= over_ns)
    return (
        float(idle[is_own].mean()) >= _HALF * min(1.0, lost_ns / _POLL_NS)
        if is_own.any()
        else False
    )
