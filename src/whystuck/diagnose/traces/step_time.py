"""Where the time of the steps of each rank went, from the tables of its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.traces.columns import CAUSES, read_table
from whystuck.evidence.table import Column, Table
from whystuck.evidence.traces.tables import TraceSummary

Times = NDArray[np.int64]

# The device has nothing to do, and neither input nor a sync of the host is known to be why.
_BARE_IDLE = ("host", "launch", "idle")


@dataclass(frozen=True)
class RankTime:
    """The time of each rank, one value a rank, ranks ascending; ns.

    ``steps`` counts steps; where it is 0, ``wall_ns`` is the time from the first to the
    last work of the device. ``has_device`` tells whether the device did any work. ``parts`` are
    keyed by `CAUSES` and make up ``wall_ns``.
    """

    ranks: Times
    steps: Times
    wall_ns: Times
    has_device: NDArray[np.bool_]
    parts: Mapping[str, Times]

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def idle_ns(self) -> Times:
        """Time in which the device had nothing to do, for no reason known so far."""
        total: Times = sum((self.parts[name] for name in _BARE_IDLE), np.zeros_like(self.wall_ns))
        return total

    def share(self, ns: Times) -> NDArray[np.float64]:
        """Return the share of the time of each rank that some ns are; 0 where it has none."""
        return ns / np.maximum(self.wall_ns, 1)


def get_column(table: Table, name: str, default: float = 0) -> Column:
    """Return a column, filled with ``default`` where the table lacks it."""
    if name in table.columns:
        return table[name]
    return np.full(len(table), default)


def sum_by_rank(table: Table, name: str, ranks: Times, rows: Column | None = None) -> Times:
    """Add up a column for each rank; what is unknown, or of another rank, counts for nothing."""
    if not len(table) or name not in table.columns or not len(ranks):
        return np.zeros(len(ranks), dtype=np.int64)
    place = np.searchsorted(ranks, table["rank"])
    place = np.minimum(place, len(ranks) - 1)
    is_ours = (ranks[place] == table["rank"]) & (table[name] > 0)
    if rows is not None:
        is_ours &= rows
    weights = np.where(is_ours, table[name], 0)
    return np.rint(np.bincount(place, weights=weights, minlength=len(ranks))).astype(np.int64)


def sum_rows(
    table: Table, column: str, keys: Sequence[str], rows: Column | None = None
) -> list[tuple[tuple[str, ...], float, int]]:
    """Add a column up over the rows that agree in some keys.

    Args:
        table: The table.
        column: What is added up; what is below 0 counts for nothing.
        keys: The columns that must agree; one that is not there is empty.
        rows: A mask of the rows that count; all when left out.

    Returns:
        The keys as text, the sum, and the row with the most; the largest sum first.
    """
    if not len(table) or column not in table.columns:
        return []
    at = np.arange(len(table)) if rows is None else np.flatnonzero(rows)
    values = np.nan_to_num(np.maximum(table[column][at].astype(np.float64), 0))
    lists = [table[key][at].tolist() if key in table.columns else [""] * len(at) for key in keys]
    seen: dict[tuple[object, ...], int] = {}
    codes = np.array([seen.setdefault(key, len(seen)) for key in zip(*lists, strict=True)], int)
    sums = np.bincount(codes, weights=values, minlength=len(seen))
    # Of rows in ascending order of their values, the last one of each code is left.
    order = np.argsort(values, kind="stable")
    most = np.zeros(len(seen), dtype=np.int64)
    most[codes[order]] = at[order]
    made = [
        (tuple(str(part) for part in key), float(sums[code]), int(most[code]))
        for key, code in seen.items()
    ]
    return sorted(made, key=lambda item: -item[1])


def measure_time(summary: TraceSummary) -> RankTime:
    """Find where the time of each rank went.

    Args:
        summary: The traces.

    Returns:
        Ranks that have steps by their steps, others by the work of their device; ranks
        that have neither are left out.
    """
    steps, devices = (read_table(summary, name) for name in ("step_time", "temporal_breakdown"))
    known = [table["rank"] for table in (steps, devices) if len(table)]
    if not known:
        return _make_time(np.empty(0, dtype=np.int64), {}, {})
    ranks = np.unique(np.concatenate(known)).astype(np.int64)
    counts = np.zeros(len(ranks), dtype=np.int64)
    if len(steps):
        known_steps = steps["rank"][steps["step"] >= 0]
        counts = np.bincount(np.searchsorted(ranks, known_steps), minlength=len(ranks))
    by_step = _sum_parts(steps, ranks, "wall_ns")
    by_device = _sum_device_parts(devices, read_table(summary, "idle_summary"), ranks)
    # Where work was launched and no device shows any, nobody knows what the time went on.
    is_told = sum(by_step[name] for name in CAUSES) > 0
    is_by_step = (by_step["wall"] > 0) & is_told
    parts = {name: np.where(is_by_step, by_step[name], by_device[name]) for name in by_step}
    busy = sum_by_rank(devices, "busy_ns", ranks)
    time = _make_time(ranks, parts, {"steps": counts, "busy": busy})
    kept = time.wall_ns > 0
    return RankTime(
        time.ranks[kept],
        time.steps[kept],
        time.wall_ns[kept],
        time.has_device[kept],
        {name: part[kept] for name, part in time.parts.items()},
    )


def _make_time(ranks: Times, parts: Mapping[str, Times], more: Mapping[str, Times]) -> RankTime:
    none = np.zeros(len(ranks), dtype=np.int64)
    return RankTime(
        ranks,
        more.get("steps", none).astype(np.int64),
        parts.get("wall", none),
        more.get("busy", none) > 0,
        {name: parts.get(name, none) for name in CAUSES},
    )


def _sum_parts(table: Table, ranks: Times, wall: str) -> dict[str, Times]:
    made = {"wall": sum_by_rank(table, wall, ranks)}
    return made | {name: sum_by_rank(table, f"{name}_ns", ranks) for name in CAUSES}


def _sum_device_parts(devices: Table, idle: Table, ranks: Times) -> dict[str, Times]:
    """Split the time of devices; of their idle time, only who was late is known, not why."""
    made = _sum_parts(devices, ranks, "wall_ns")
    late = np.minimum(sum_by_rank(idle, "host_wait_ns", ranks), made["idle"])
    return made | {"launch": late, "idle": made["idle"] - late}
