"""One process of which a text shows the stacks."""

from __future__ import annotations

from dataclasses import dataclass, field

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.lines.lines import LogLine

# Stands for the outer frames, where a stack was cut.
CUT = Frame("<cut>", "", 0)


@dataclass(slots=True)
class StackSeen:
    """The threads of one process.

    Attributes:
        row: The line where they begin, from 1.
        line: That line, for whose it is and when it was.
        pid: The process, 0 when unknown.
        rank: The rank that a heading names.
        local: The local rank in its command, -1 when none is.
        parent: The process that has started it, 0 when unknown.
        is_worker: Whether it is a process of a data loader.
        node: The host or pod that a summary names.
        alike: How many processes have these stacks.
        others: The ranks that somebody says have the same stacks.
        is_rest: Whether it is of all ranks of which no other stack is shown.
        threads: The threads, each innermost frame first.
        source: What printed them.
    """

    row: int
    line: LogLine
    pid: int = 0
    rank: int = UNKNOWN_RANK
    local: int = -1
    parent: int = 0
    is_worker: bool = False
    node: str = ""
    alike: int = 1
    others: frozenset[int] = frozenset()
    is_rest: bool = False
    threads: list[ThreadStack] = field(default_factory=list)
    source: str = "py-spy"

    @property
    def own_rank(self) -> int:
        """The rank that a heading names, or else a prefix; -1 where neither does."""
        return self.rank if self.rank != UNKNOWN_RANK else self.line.rank
