"""What the agent itself uses, and what it does when that is too much."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from whystuck.agent.config import LimitsSection

_LOGGER = logging.getLogger(__name__)

LOOK_S = 10.0
_WINDOW = 6
"""Looks that a judgement takes: a minute."""
_MAX_PACE = 16.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnUse(NamedTuple):
    """CPU seconds since the start, and resident memory now; -1 where unknown."""

    time_s: float
    cpu_s: float
    rss_bytes: int


def read_own_use() -> OwnUse:
    """Read what this process uses."""
    try:
        rss_bytes = int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        rss_bytes = -1
    return OwnUse(time.monotonic(), time.process_time(), rss_bytes)


class OwnLimits:
    """Slows down reading figures while the agent uses more than it may.

    Args:
        limits: What it may use.
        set_pace: Is told how many times less often figures are to be read, 1 to 16.
        read: What it uses now.
    """

    def __init__(
        self,
        limits: LimitsSection,
        set_pace: Callable[[float], None],
        read: Callable[[], OwnUse] = read_own_use,
    ) -> None:
        self.pace = 1.0
        self.limits = limits
        self._set_pace = set_pace
        self._read = read
        self._uses: deque[OwnUse] = deque([read()], maxlen=_WINDOW + 1)

    def look(self) -> None:
        """Look once; called every `LOOK_S` seconds."""
        self._uses.append(self._read())
        if len(self._uses) <= _WINDOW:
            return
        over = self._over()
        if over:
            self._change(min(_MAX_PACE, self.pace * 2), over)
        elif self.pace > 1 and self._is_well_below():
            self._change(self.pace / 2, "it uses little again")

    @property
    def cpu_percent(self) -> float:
        """Share of one core over the last minute."""
        first, last = self._uses[0], self._uses[-1]
        return 100 * (last.cpu_s - first.cpu_s) / max(1e-9, last.time_s - first.time_s)

    @property
    def rss_bytes(self) -> int:
        """Resident memory, -1 where unknown."""
        return self._uses[-1].rss_bytes

    def _over(self) -> str:
        limits = self.limits
        if limits.cpu_percent and self.cpu_percent > limits.cpu_percent:
            return f"{self.cpu_percent:.1f} % of a core is more than {limits.cpu_percent:g} %"
        if limits.rss_bytes and self.rss_bytes > limits.rss_bytes:
            return f"{self.rss_bytes} bytes of memory are more than {limits.rss_bytes}"
        return ""

    def _is_well_below(self) -> bool:
        limits = self.limits
        # Twice as often costs twice as much at most: half of the limit is safe.
        cpu_is_low = not limits.cpu_percent or self.cpu_percent <= limits.cpu_percent / 2
        return cpu_is_low and not self._over()

    def _change(self, pace: float, why: str) -> None:
        # What comes next is judged by itself.
        last = self._uses[-1]
        self._uses.clear()
        self._uses.append(last)
        if pace != self.pace:
            self.pace = pace
            how = f"{pace:g} times less often than asked" if pace > 1 else "as often as asked"
            _LOGGER.warning("figures are read %s: %s", how, why)
            self._set_pace(pace)
