"""Rank sets and their short form: ``[0, 1, 2, 5]`` is written ``0-2,5``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# No job is larger; numbers above this in a file or its name are something else. A set of so many
# ranks takes 24 MB, and an analysis has several.
MAX_RANK = (1 << 18) - 1
# Where nothing tells the rank of a process, the negative of its number stands for it; what has no
# number, either, is counted from here.
FIRST_UNNUMBERED = 1 << 23
_MAX_PROCESSES = 4


def is_process(rank: int) -> bool:
    """Tell whether a number stands for a process whose rank nothing tells."""
    return rank < -1


def format_ranks(ranks: Iterable[int]) -> str:
    """Write a set of ranks as sorted ranges, e.g. ``0-2,5``; an empty set is an empty string."""
    ordered = sorted(rank for rank in set(ranks) if not is_process(rank))
    parts: list[str] = []
    start = previous = None
    for rank in [*ordered, None]:
        if start is not None and previous is not None and rank != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = rank
        previous = rank
    return ",".join(parts)


def name_ranks(ranks: Iterable[int]) -> str:
    """Write a set of ranks for a sentence: ``rank 3`` or ``ranks 0-2,5``."""
    known = set(ranks)
    nameless = sorted(-rank for rank in known if is_process(rank))
    ordered = sorted(rank for rank in known if not is_process(rank))
    words = [f"rank{'' if len(ordered) == 1 else 's'} {format_ranks(ordered)}"] if ordered else []
    if nameless:
        words.append(_name_processes(nameless))
    return " and ".join(words) if words else "ranks "


def _name_processes(numbers: Sequence[int]) -> str:
    told = [number for number in numbers if number < FIRST_UNNUMBERED]
    if len(numbers) == 1:
        return f"process {told[0]}" if told else "a process"
    if len(told) == len(numbers) <= _MAX_PROCESSES:
        return f"processes {', '.join(map(str, told))}"
    return f"{len(numbers)} processes"


def parse_ranks(text: str) -> frozenset[int]:
    """Read a rank set such as ``0-2,5``; parts that are no ranks are left out."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            ranks.update(range(int(first), int(last or first) + 1))
    return frozenset(ranks)
