"""What is known of a stack while it is read: the process that is open, and the heading above it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.blocks.stacks.seen import StackSeen

# Of a stack that so many lines of others follow, nothing more comes.
MAX_STRANGERS = 200


@dataclass(slots=True)
class OpenProcess:
    """A process whose stacks are being read; ``seen`` is the number of its last line."""

    process: StackSeen
    seen: int = 0
    frames: list[Frame] = field(default_factory=list)
    command: str = ""
    notes: list[tuple[int, str]] = field(default_factory=list)
    # How far in the variables of the last frame stand, -1 where none are shown.
    indent: int = -1
    # So many frames make a stack: a line of a rank alone may look like one.
    least: int = 1


@dataclass(slots=True)
class Heading:
    """What was said before the stacks that come next."""

    rank: int = UNKNOWN_RANK
    pid: int = 0
    command: str = ""
    seen: int = -MAX_STRANGERS
    # The process that is said to be of the rank; the rank that a prefix says wrote it.
    rank_pid: int = 0
    writer: int = UNKNOWN_RANK
    node: str = ""
    local: int = -1
    others: frozenset[int] = frozenset()
    is_rest: bool = False

    @property
    def names_one(self) -> bool:
        """Whether it tells whose the next stack is: a rank's, or one process's."""
        return self.rank != UNKNOWN_RANK or self.local >= 0 or self.is_rest or bool(self.command)


# The process of the rank, where a heading tells both.
_HEADING_PID = re.compile(
    r"\b(?:pid|PID|worker(?: process)? ?(?=\d{3}))[ =:#]{0,3}(\d{1,10})\b"
    r"|^[\W_]{0,12}(\d{2,7})[ ,:(]{1,3}RANK[= ]"
)


def read_heading_pid(text: str) -> int:
    """Return the process that a heading tells, 0 where it tells none."""
    process = _HEADING_PID.search(text[:200])
    return int(process[1] or process[2]) if process else 0
