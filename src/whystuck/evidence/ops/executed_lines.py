"""The last lines that threads executed, as `whystuck run --trace-lines` records them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutedLine:
    """One line of the user's code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ExecutedThread:
    """The last lines of one thread, oldest first; ``count`` is how many it executed in all."""

    name: str
    native_id: int
    is_main: bool
    count: int
    lines: tuple[ExecutedLine, ...]


@dataclass(frozen=True)
class ExecutedLines:
    """What one rank recorded.

    Attributes:
        rank: The rank.
        method: ``settrace`` or ``monitoring``.
        capacity: How many lines of each thread are kept.
        line_ns: What recording a line costs on that machine, in ns of thread time; 0 when unknown.
        call_ns: What a call of a function of a library costs more.
        started_ns: When it began, in ns since 1970.
        lost_threads: How many threads there was no room for.
        problem: Why nothing was recorded, or empty.
        threads: The threads that have lines.
        artifact: The file.
    """

    rank: int
    method: str
    capacity: int
    line_ns: float = 0.0
    call_ns: float = 0.0
    started_ns: int = 0
    lost_threads: int = 0
    problem: str = ""
    threads: tuple[ExecutedThread, ...] = ()
    artifact: str = ""

    @property
    def count(self) -> int:
        """How many lines the threads that are kept executed in all."""
        return sum(thread.count for thread in self.threads)
