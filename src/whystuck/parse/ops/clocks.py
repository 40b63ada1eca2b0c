"""The wall clock of logs that were written by the monotonic clock of a host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.log import Column
from whystuck.parse.ops.header import Clock, LogFile, RankLog

# Clocks that are adjusted run faster or slower by no more than this; else somebody has set one.
_MAX_DRIFT = 1e-3
# Processes of one host that began on it agree on what lies between its two clocks.
_SAME_HOST_NS = 10_000_000_000
_LATEST_NS = 1 << 61


Log = TypeVar("Log", bound=RankLog)


@dataclass(frozen=True)
class Rate:
    """How the wall clock of a host follows its monotonic clock."""

    start: Clock
    drift: float
    clock: int = 0

    def to_wall(self, times: NDArray[Any]) -> Column:
        """Turn times of the monotonic clock into wall clock; 0 stays unknown."""
        passed = times - self.start.monotonic_ns
        wall = self.start.wall_ns + passed + np.rint(passed * self.drift).astype(np.int64)
        return np.where(times == 0, 0, np.clip(wall, 1, _LATEST_NS))

    def to_wall_one(self, time_ns: int) -> int:
        """Turn one time into wall clock."""
        return int(self.to_wall(np.array([time_ns], dtype=np.int64))[0])


class Rates:
    """How to turn times of logs into wall clock: for all processes of a host in one way.

    They share the monotonic clock, so that their times can be compared to the nanosecond.
    """

    def __init__(self, logs: Sequence[RankLog]) -> None:
        """Find them; all logs whose times are to be compared must be there."""
        self._rates = {id(log): rate for log, rate in zip(logs, _find_rates(logs), strict=True)}

    def find(self, log: RankLog) -> Rate:
        """Return that of one of the logs."""
        return self._rates[id(log)]


def choose_newest(
    files: Iterable[LogFile[Log]],
) -> tuple[list[LogFile[Log]], list[tuple[int, str]]]:
    """Keep one log of each rank: that of the process that lived last.

    Args:
        files: Any number for each rank; none but those that are kept is held.

    Returns:
        Those to read, and rank and artifact of those that are passed over.
    """
    kept: dict[int, LogFile[Log]] = {}
    old = []
    for file in files:
        known = kept.get(file.rank)
        if known is None or known.log.last_clock.wall_ns < file.log.last_clock.wall_ns:
            kept[file.rank] = file
            old += [(known.rank, known.artifact)] if known is not None else []
        else:
            old.append((file.rank, file.artifact))
    return list(kept.values()), old


def _find_rates(logs: Sequence[RankLog]) -> list[Rate]:
    hosts: dict[tuple[str, int], list[int]] = {}
    starts: dict[str, list[int]] = {}
    for index, log in enumerate(logs):
        offset_ns = log.last_clock.offset_ns
        known = starts.setdefault(log.about.host, [])
        near = [start for start in known if abs(start - offset_ns) < _SAME_HOST_NS]
        if not near:
            known.append(offset_ns)
        hosts.setdefault((log.about.host, (near or [offset_ns])[0]), []).append(index)
    rates = [Rate(Clock(0, 0), 0.0)] * len(logs)
    for number, members in enumerate(hosts.values()):
        rate = replace(_find_rate([logs[index] for index in members]), clock=number)
        for index in members:
            rates[index] = rate
    return rates


def _find_rate(logs: Sequence[RankLog]) -> Rate:
    first = min((log.first_clock for log in logs), key=lambda clock: clock.monotonic_ns)
    last = max((log.last_clock for log in logs), key=lambda clock: clock.monotonic_ns)
    passed = last.monotonic_ns - first.monotonic_ns
    drift = (last.offset_ns - first.offset_ns) / passed if passed > 0 else 0.0
    # After somebody has set the clock, what it tells now counts.
    return Rate(first, drift) if abs(drift) < _MAX_DRIFT else Rate(last, 0.0)
