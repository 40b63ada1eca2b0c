"""One op of a group on all its ranks: who came when, and when it ended.

Times are float ns since the first op. Ranks of one host have one clock; those of several hosts are
compared by the ends of ops that no rank finishes before all have come, which is one moment for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.log import HOST, P2P, Ops
from whystuck.evidence.ops.names import needs_all

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# An end may be noted this much before the last arrival: clocks are read one after the other.
_FEW = 5


@dataclass(frozen=True)
class Instances:
    """Ops of groups, each with its rows side by side.

    ``rows`` are the rows of the op log, those of one instance together; ``starts`` and ``sizes``
    tell which. ``is_full`` is true where all members are there with the same op. Of each row,
    ``began`` is the call, ``arrived`` is when its rank came, NaN when unknown, and the end lies in
    ``low`` to ``high``, NaN while it has none. ``clock_error_ns`` is NaN with one clock.
    """

    rows: Numbers
    starts: Numbers
    sizes: Numbers
    is_full: Flags
    began: Times
    arrived: Times
    low: Times
    high: Times
    clock_error_ns: float

    @property
    def number(self) -> Numbers:
        """The number of the instance of each row."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def maximum(self, values: Times) -> Times:
        """Return the largest value of each instance; NaN where one is not known."""
        return np.maximum.reduceat(values, self.starts) if len(values) else values

    def minimum(self, values: Times) -> Times:
        """Return the smallest value of each instance; NaN where one is not known."""
        return np.minimum.reduceat(values, self.starts) if len(values) else values


def match_instances(ops: Ops) -> Instances:
    """Put the collectives of all ranks side by side.

    Args:
        ops: The op logs.

    Returns:
        The instances, by group and number.
    """
    rows = np.flatnonzero((ops.place > 0) & (ops.flags & P2P == 0) & (ops.enqueued_ns > 0))
    rows = rows[np.lexsort((ops.rank[rows], ops.place[rows], ops.team[rows]))]
    team, place = ops.team[rows], ops.place[rows]
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = (team[1:] != team[:-1]) | (place[1:] != place[:-1])
    starts = np.flatnonzero(is_first)
    sizes = np.diff(np.append(starts, len(rows)))
    members = np.array([len(one.members) for one in ops.teams] or [0], dtype=np.int64)
    code = number_names(ops)[ops.form[rows]]
    is_full = np.zeros(0, dtype=np.bool_)
    if len(rows):
        is_alike = np.maximum.reduceat(code, starts) == np.minimum.reduceat(code, starts)
        is_full = np.asarray((sizes == members[team[starts]]) & is_alike)
    found = Instances(rows, starts, sizes, is_full, *_read_times(ops, rows), np.nan)
    return _tighten(ops, _set_clocks(ops, found))


def number_names(ops: Ops) -> Numbers:
    """Number the names of ops; one number for each form."""
    names: dict[str, int] = {}
    return np.array([names.setdefault(form.op, len(names)) for form in ops.forms], dtype=np.int64)


def find_meetings(ops: Ops) -> Flags:
    """Tell for each form whether no rank finishes the op before all have come."""
    return np.array([needs_all(form.op) for form in ops.forms], dtype=np.bool_)


def _read_times(ops: Ops, rows: Numbers) -> tuple[Times, Times, Times, Times]:
    origin = int(ops.enqueued_ns[rows].min()) if len(rows) else 0
    device = np.array([form.device not in {"cpu", ""} for form in ops.forms], dtype=np.bool_)
    on_device = device[ops.form[rows]] & (ops.flags[rows] & HOST == 0)

    def since(times: Numbers) -> Times:
        return np.where(times > 0, (times - origin).astype(np.float64), np.nan)

    began = since(ops.enqueued_ns[rows])
    # A device comes to an op when its queue does, which only the device can tell.
    arrived = np.where(on_device, since(ops.started_ns[rows]), began)
    high = since(ops.ended_ns[rows])
    low = np.fmax(np.fmax(began, since(ops.pending_ns[rows])), arrived)
    low = np.where(np.isnan(high), np.nan, np.fmin(low, high))
    return began, arrived, low, high


def _set_clocks(ops: Ops, found: Instances) -> Instances:
    """Take out by how much the clocks of hosts differ."""
    clock_by_log = np.array([log.clock for log in ops.logs] or [0], dtype=np.int64)
    clock = clock_by_log[ops.log[found.rows]]
    clocks = np.unique(clock)
    if len(clocks) < 2 or not len(found.rows):  # noqa: PLR2004 - one clock needs no offset
        return found
    chosen = found.is_full & find_meetings(ops)[ops.form[found.rows[found.starts]]]
    ends = np.full((len(clocks), int(chosen.sum())), np.nan)
    for place, one in enumerate(clocks.tolist()):
        mine = np.where((clock == one) & ~np.isnan(found.high), found.high, np.inf)
        ends[place] = found.minimum(mine)[chosen]
    ends[np.isinf(ends)] = np.nan
    shared = ends[:, ~np.isnan(ends).any(axis=0)]
    if shared.shape[1] < _FEW:
        nothing = np.full(len(found.rows), np.nan)
        return replace(found, arrived=nothing, clock_error_ns=np.inf)
    apart = shared - np.median(shared, axis=0)
    offset = np.median(apart, axis=1)
    error = float(np.median(np.abs(apart - offset[:, None])))
    by_row = offset[np.searchsorted(clocks, clock)]
    return replace(
        found,
        began=found.began - by_row,
        arrived=found.arrived - by_row,
        low=found.low - by_row,
        high=found.high - by_row,
        clock_error_ns=error,
    )


def _tighten(ops: Ops, found: Instances) -> Instances:
    """Bound the end by that of the other ranks, where an op ends for all at about one time."""
    if not len(found.rows):
        return found
    chosen = found.is_full & find_meetings(ops)[ops.form[found.rows[found.starts]]]
    number = found.number
    last = found.maximum(found.arrived)[number]
    first_end = found.minimum(found.high)[number]
    bound = chosen[number] & ~np.isnan(first_end) & ~np.isnan(last) & (last <= first_end)
    low = np.where(bound, np.fmax(found.low, last), found.low)
    high = np.where(bound, np.fmin(found.high, np.fmax(low, first_end)), found.high)
    return replace(found, low=low, high=high)
