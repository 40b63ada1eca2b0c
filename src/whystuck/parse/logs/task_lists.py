"""Lists of tasks, as Slurm writes them."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK

MAX_TASKS = 20_000


def expand_tasks(text: str) -> Iterator[int]:
    """Yield the numbers of ``0-2,4``."""
    left = MAX_TASKS
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            continue
        low, high = int(first[:7]), int((last or first)[:7])
        for number in range(low, min(high, low + left - 1, MAX_RANK) + 1):
            left -= 1
            yield number
