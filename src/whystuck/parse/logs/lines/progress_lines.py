"""Lines of progress that were found and not looked at yet: the last ones of each kind.

A log that is well is full of them. They tell something only before a failure, and at the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class HeldLine:
    """A line, with what stands before it.

    ``data`` ends with the line, which begins at ``start``; ``owners`` are the signatures to try.
    """

    row: int
    data: bytes
    start: int
    owners: frozenset[int]


class HeldLines:
    """Keeps the last lines of each kind, over the blocks of a log."""

    def __init__(self) -> None:
        self._kinds: dict[int, deque[HeldLine]] = {}

    def hold(self, line: HeldLine, kind: int, most: int) -> None:
        """Keep a line, with so many before it of its kind."""
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = deque(maxlen=most)
        kept.append(line)

    def release(self) -> list[HeldLine]:
        """Return all in their order, and keep none."""
        if not self._kinds:
            return []
        held = [line for kept in self._kinds.values() for line in kept]
        self._kinds = {}
        return sorted(held, key=attrgetter("row"))
