"""Looks at all ranks of a node, as often as is cheap."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar


class Looked(Protocol):
    """What was seen of one process."""

    def look(self, now_s: float) -> None:
        """Look again; nothing comes of it when the process is gone."""


T = TypeVar("T", bound=Looked)


class Tracker(Generic[T]):
    """What was seen of each process; never fails its caller."""

    def __init__(self, begin: Callable[[int], T], every_s: float, cost_share: float) -> None:
        """Begin with no process.

        Args:
            begin: Makes what is seen of a process, from its pid.
            every_s: How often to look.
            cost_share: The share of a core that all looks together may take.
        """
        self._begin, self._every_s, self._cost_share = begin, every_s, cost_share
        self._by_pid: dict[int, T] = {}
        self._next_s = 0.0

    def look(self, pids: Iterable[int], now_s: float) -> None:
        """Look at the processes that live, unless the last time was a moment ago."""
        if now_s < self._next_s:
            return
        begin_s = time.thread_time()
        for pid in pids:
            known = self._by_pid.get(pid)
            if known is None:
                known = self._by_pid[pid] = self._begin(pid)
            known.look(now_s)
        cost_s = time.thread_time() - begin_s
        self._next_s = now_s + max(self._every_s * 0.9, cost_s / self._cost_share)

    def keep(self, pids: Collection[int]) -> None:
        """Forget all processes but these."""
        self._by_pid = {pid: known for pid, known in self._by_pid.items() if pid in pids}
