"""What the command of a process, which py-spy prints above its stacks, tells of its rank."""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK

# Where one process starts others, it is the number of the host.
_RANK = re.compile(r"^(?!.*multiprocessing).* --(?:global[-_])?rank[ =](\d{1,7})(?!\S)")
_LOCAL = re.compile(r"(?<!\S)--local[-_]rank[ =](\d{1,4})(?!\S)")


def find_rank(command: str) -> int:
    """Return the rank that an option names."""
    found = _RANK.search(command)
    return min(int(found[1]), MAX_RANK) if found else UNKNOWN_RANK


def find_local_rank(command: str) -> int:
    """Return the local rank that launchers give by an option, -1 where none does."""
    found = _LOCAL.search(command)
    return int(found[1]) if found else -1
