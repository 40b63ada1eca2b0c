"""What one analysis takes in: files of each kind, bytes out of packed files, seconds of CPU.

Evidence comes from strangers, so each has an end; none is near what sound evidence needs. What is
left out is told as a gap, and nothing that was read in part is called healthy.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from whystuck.evidence.finding import Gap
from whystuck.guarded.evidence_files import look_at
from whystuck.read.content import FreeBytes

A = TypeVar("A")
T = TypeVar("T")

# Of each kind, in all folders of one analysis: eight of each of 4,096 ranks.
MAX_FILES = 1 << 15
# No new file is taken after so many seconds of CPU, and as many more as the evidence is large: the
# slowest to read are packed traces, of which a MB takes about a second.
_BASE_S = 60.0
_S_PER_MB = 4.0
LATE = "it takes too long to read all"
MANY = f"of one kind, {MAX_FILES} files are read"


class Deadline:
    """Tells when no new file is to be read; it counts the CPU of this process from now on."""

    def __init__(self, paths: Iterable[Path] = (), more_bytes: int = 0) -> None:
        """Begin.

        Args:
            paths: What there is to read; looked at only when it takes long.
            more_bytes: The size of what there is to read that has no path here.
        """
        self._paths, self._more_bytes = paths, more_bytes
        self._limit_s, self._is_measured = _BASE_S, False
        self._started = time.process_time()
        self._spent_s = 0.0

    def add(self, seconds: float) -> None:
        """Count CPU that another process has spent."""
        self._spent_s += seconds

    @property
    def is_over(self) -> bool:
        """Whether no new file is to be read."""
        spent = time.process_time() - self._started + self._spent_s
        if spent > self._limit_s and not self._is_measured:
            self._is_measured = True
            size = sum(map(_measure, self._paths)) + self._more_bytes
            self._limit_s += _S_PER_MB * size / 1e6
        return spent > self._limit_s


def _measure(path: Path) -> int:
    """Return how many bytes the disk holds of a file, or an archive of a node."""
    try:
        status = path.lstat()
    except OSError:
        return _measure_member(path)
    return min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)


def _measure_member(path: Path) -> int:
    try:
        return look_at(path).size
    except OSError:
        return 0


def count_cpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_cpu(work: Callable[[A], T], item: A) -> tuple[T, float]:
    """Do some work in another process; return what came of it, and the seconds of CPU it took."""
    started = time.process_time()
    return work(item), time.process_time() - started


def wait_for(
    futures: Mapping[Future[tuple[T, float]], int],
    progress: Callable[[int, int], None],
    deadline: Deadline,
) -> None:
    """Wait for what `measure_cpu` does; past the deadline, what has not begun is cancelled.

    Args:
        futures: The work, and how much each of it counts.
        progress: Called with how much is done, and with all.
        deadline: Counts the CPU of the work.
    """
    done, total = 0, sum(futures.values())
    for future in as_completed(futures):
        done += futures[future]
        progress(done, total)
        if not future.cancelled() and future.exception() is None:
            deadline.add(future.result()[1])
        if deadline.is_over:
            for other in futures:
                other.cancel()


def tell_left_out(what: str, count: int, reason: str = LATE) -> Gap:
    """Make the gap of files that were not read.

    Args:
        what: Their kind.
        count: How many there are.
        reason: Why they were not read.
    """
    return Gap(None, what, f"{count} more were not read: {reason}")


def keep_first(items: Sequence[T], what: str) -> tuple[Sequence[T], list[Gap]]:
    """Return the first files of one kind, as many as are read, and the gap for the others.

    Args:
        items: All there are.
        what: Their kind.
    """
    over = len(items) - MAX_FILES
    return items[:MAX_FILES], [tell_left_out(what, over, MANY)] if over > 0 else []


@dataclass
class Budget:
    """What one analysis may still take in, and what it has left out for that.

    ``is_spent`` tells that any file was not read.
    """

    deadline: Deadline = field(default_factory=Deadline)
    free: FreeBytes = field(default_factory=FreeBytes)
    is_spent: bool = False
    _taken: Counter[str] = field(default_factory=Counter)
    _left_out: Counter[tuple[str, str]] = field(default_factory=Counter)

    def admit(self, what: str) -> bool:
        """Take in one more file, and return whether it may be read.

        Args:
            what: The kind of the file, as gaps call it.
        """
        self._taken[what] += 1
        if self.deadline.is_over:
            self.leave_out(what)
        elif self._taken[what] > MAX_FILES:
            self.leave_out(what, reason=MANY)
        else:
            return True
        return False

    def leave_out(self, what: str, count: int = 1, reason: str = LATE) -> None:
        """Note files that were not read.

        Args:
            what: Their kind.
            count: How many there are; may be none.
            reason: Why they were not read.
        """
        if count:
            self.is_spent = True
            self._left_out[what, reason] += count

    def list_gaps(self) -> list[Gap]:
        """Return what was left out, a gap for each kind and reason."""
        return [
            tell_left_out(what, count, why) for (what, why), count in sorted(self._left_out.items())
        ]
