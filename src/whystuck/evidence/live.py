"""What was seen of processes: stacks, process state, beats, exceptions and exits."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.evidence.call_records import (
    FailedManagerEntry,
    Frame,
    LeavingRecord,
    PeerCountEntry,
    PeerWaitEntry,
)
from whystuck.evidence.logs.lines import LogTime
from whystuck.evidence.records import ExitEntry, ProcSample


@dataclass(frozen=True)
class ThreadStack:
    """One thread of one sample, innermost frame first.

    ``owns_gil`` and ``active`` are as the sampler saw them; ``None`` when it cannot tell.
    ``notes`` are comments that people wrote behind frames, each with the number of its frame.
    """

    thread_id: int
    name: str
    frames: tuple[Frame, ...]
    is_main: bool = False
    owns_gil: bool | None = None
    active: bool | None = None
    notes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class StackSample:
    """All threads of one process at one moment.

    ``rank`` is the rank the process belongs to; ``worker`` is true for a
    child of the rank that runs Python, most often a data-loader worker.
    ``index`` counts samples of the same process from 0; ``source`` is ``py-spy``,
    ``faulthandler``, ``gdb``, ``profiler`` or ``summary``.
    """

    rank: int
    pid: int
    worker: bool
    index: int
    threads: tuple[ThreadStack, ...]
    source: str = "py-spy"
    artifact: str = ""
    # From a log: the line where they begin, from 1.
    row: int | None = None

    @property
    def main(self) -> ThreadStack | None:
        """The main thread, when the sample has it."""
        return next((thread for thread in self.threads if thread.is_main), None)


@dataclass(frozen=True, kw_only=True)
class ProcessSample(ProcSample):
    """The kernel's view of one process of a rank at one moment."""

    rank: int
    worker: bool
    artifact: str = ""


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a rank, and how it stood when the evidence was taken.

    ``age_s`` is its age; ``answered_without_gil``, in evidence of older versions, is true when a
    C++ server in the rank answered although the beat was stale (the GIL is held). ``groups`` maps
    group name to members; ``group_calls`` is how many groups the rank has begun to make, -1 when
    unknown, and ``begun_groups`` maps the numbers of the last ones to their members as ranges.
    """

    rank: int
    pid: int
    age_s: float
    stale: bool = False
    answered_without_gil: bool = False
    optimizer_steps: int = 0
    enqueued: int = 0
    completed: int = 0
    p2p_sent: int = 0
    p2p_received: int = 0
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    artifact: str = ""
    group_calls: int = -1
    begun_groups: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PeerWait(PeerWaitEntry):
    """A send or receive that a thread of a rank waits for, and where that was read."""

    rank: int
    source: str = "probe"
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True, kw_only=True)
class PeerCount(PeerCountEntry):
    """How many sends to, or receives from, one peer a rank has posted, and where it was read."""

    rank: int
    artifact: str = ""


@dataclass(frozen=True, kw_only=True)
class FailedManager(FailedManagerEntry):
    """A coalescing manager that failed on a rank, and where that was read."""

    rank: int
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True)
class PythonException:
    """An uncaught exception of one rank, innermost frame first."""

    rank: int
    type: str
    message: str
    frames: tuple[Frame, ...]
    time_ns: int = 0
    is_main_thread: bool = True
    thread: str = ""
    source: str = "excepthook"
    artifact: str = ""
    # From a log: the line where the traceback begins (from 1), and whose and when it was.
    row: int = 0
    node: str = ""
    pid: int = 0
    attempt: int = 0
    time: LogTime | None = None
    # The line that names the exception, 0 when unknown.
    last_row: int = 0
    # Whether the same rank went on to train long after it: somebody caught it.
    is_caught: bool = False
    # What was printed before it in one chain, the first one first, or the members of its group.
    # What ended the process is the exception itself.
    origins: tuple[PythonException, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExitRecord(ExitEntry):
    """How the process of one rank ended."""

    rank: int
    artifact: str = ""
    # From a log: the line, from 1, whose and when it was, and the words for it (``OOMKilled``).
    row: int = 0
    node: str = ""
    attempt: int = 0
    time: LogTime | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Departure(LeavingRecord):
    """The call by which a rank ended itself, and where it was read."""

    rank: int
    artifact: str = ""


@dataclass(frozen=True)
class FatalStack:
    """The Python stacks that faulthandler wrote while a fatal signal killed the process."""

    rank: int
    reason: str
    threads: tuple[ThreadStack, ...]
    artifact: str = ""
    # From a log: its first and last line, that of the frame that crashed, from 1, and where and
    # when it was.
    row: int = 0
    last_row: int = 0
    site_row: int = 0
    node: str = ""
    attempt: int = 0
    time: LogTime | None = None
