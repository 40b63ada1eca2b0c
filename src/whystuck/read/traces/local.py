"""The local engine: files are mapped by processes of this machine, within a budget of memory."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Self

import msgspec

from whystuck.evidence.decoding import msgpack_decoder
from whystuck.guarded.remote import MAX_FETCHED_BYTES, local_path
from whystuck.read.budget import Deadline, count_cpus
from whystuck.read.traces.inputs import TraceInput
from whystuck.read.traces.mapping import MapDone, MapTask, run_here
from whystuck.read.traces.memory import (
    choose_budget,
    estimate_peak,
    estimate_raw,
    estimate_raw_remote,
)
from whystuck.read.traces.worker import read_frame, write_frame

WORKER_ENVIRONMENT = {
    # The figures are made by sorting and adding; threads of BLAS only take memory.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Columns of some MB come and go. To find and empty huge pages for them takes a third of the
    # time of all figures; small ones are used again.
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""Of the processes that map files, where the user has not set these."""
# Below this, starting processes takes longer than reading.
_POOL_FROM_RAW_BYTES = 64 << 20
# Not less than this for one process, however small the budget: Python and numpy need some.
_LEAST_LIMIT_BYTES = 1 << 30
# What a store says of a small file need not be true.
_LEAST_COPY_BYTES = 64 << 20
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from whystuck.read.traces.worker import main; main()"
)
_TASK, _DONE = msgspec.msgpack.Encoder(), msgpack_decoder(MapDone)
LATE = MapDone(state="late")
"""What comes of a file that is not read."""


@dataclass(frozen=True)
class LocalEngine:
    """How files are mapped on this machine.

    Attributes:
        workers: How many processes; as many as there are cores when 0.
        memory_bytes: What all of them may take; a share of what is free when 0.
        deadline: When no new file is read; one of its own for each map when left out.
        has_our_disk: Whether they can write where we can; always.
    """

    workers: int = 0
    memory_bytes: int = 0
    deadline: Deadline | None = None
    has_our_disk: bool = True

    def map(self, tasks: Sequence[MapTask]) -> Iterator[tuple[int, MapDone]]:
        """Map files.

        A worker that is killed, as for lack of memory, loses its own file only; that is tried once
        more with nothing beside it.

        Args:
            tasks: One for each file.

        Yields:
            The position of a task and what came of it, in the order in which they end.
        """
        deadline = self.deadline or set_deadline(tasks)
        budget = self.memory_bytes or choose_budget()
        raw = [_estimate(task) for task in tasks]
        if sum(raw) < _POOL_FROM_RAW_BYTES:
            for number, task in enumerate(tasks):
                is_late = deadline.is_over
                yield number, LATE if is_late else run_here(task, may_hold=True)
            return
        needs = [estimate_peak(size) for size in raw]
        count = min(self.workers or count_cpus(), len(tasks))
        tasks = bound_copies(tasks, count)
        with _Pool(tasks, needs, count, budget, deadline) as pool:
            yield from pool.run()


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    number: int = -1  # of the task it works on

    @property
    def answers(self) -> IO[bytes]:
        stream = self.process.stdout
        if stream is None:
            raise RuntimeError("a worker was started without a pipe")
        return stream

    def give(self, number: int, task: bytes) -> None:
        self.number = number
        # Where it is gone already, its answer ends at once.
        with suppress(BrokenPipeError):
            if self.process.stdin is not None:
                write_frame(self.process.stdin, task)

    def end(self) -> int:
        """End it, and return its code; that of a signal is negative."""
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return self.process.wait()


@dataclass
class _Pool:
    """The workers, and what is still to be done; the largest files first."""

    tasks: Sequence[MapTask]
    needs: Sequence[int]
    count: int
    budget: int
    deadline: Deadline
    copies: list[int] = field(init=False)
    idle: list[_Worker] = field(default_factory=list)
    busy: list[_Worker] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __post_init__(self) -> None:
        """Reckon with the copies of all files."""
        self.copies = [size_of_copy(task) for task in self.tasks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self.idle, *self.busy):
            worker.end()
        self.selector.close()

    def run(self) -> Iterator[tuple[int, MapDone]]:
        """Map all; those whose worker died once more, one at a time."""
        waiting = sorted(range(len(self.tasks)), key=lambda number: -self.needs[number])
        while waiting or self.busy:
            if waiting and self.deadline.is_over:
                yield from ((number, LATE) for number in waiting)
                waiting.clear()
                continue
            self._fill(waiting)
            yield from self._collect()
        for number in sorted(self.again):
            while len(self.idle) > 1:
                self.idle.pop().end()
            self._start(number)
            while self.busy:
                yield from self._collect(is_last=True)

    def _fill(self, waiting: list[int]) -> None:
        """Start what fits into the budget; one file always runs, however large it is."""
        while waiting and len(self.busy) < self.count:
            running = [worker.number for worker in self.busy]
            place = choose_next(waiting, running, self.needs, self.budget, self.copies)
            if place is None:
                return
            self._start(waiting.pop(place))

    def _start(self, number: int) -> None:
        worker = self.idle.pop() if self.idle else self._spawn()
        worker.give(number, _TASK.encode(self.tasks[number]))
        self.busy.append(worker)
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _collect(self, *, is_last: bool = False) -> Iterator[tuple[int, MapDone]]:
        for key, _ in self.selector.select():
            worker: _Worker = key.data
            self.selector.unregister(worker.answers)
            self.busy.remove(worker)
            data = read_frame(worker.answers)
            if data is not None:
                self.idle.append(worker)
                done = _DONE.decode(data)
                self.deadline.add(done.cpu_s)
                yield worker.number, done
                continue
            code = worker.end()
            if is_last:
                yield worker.number, MapDone(state="bad", reason=_describe_death(code))
            else:
                self.again.append(worker.number)

    def _spawn(self) -> _Worker:
        limit = max(self.budget, _LEAST_LIMIT_BYTES)
        process = subprocess.Popen(
            # Not the working directory: it may be that of the traces, and have modules of any name.
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**WORKER_ENVIRONMENT, **os.environ},
        )
        return _Worker(process)


def set_deadline(files: Iterable[MapTask | TraceInput]) -> Deadline:
    """Set the deadline for reading some files, wherever they lie."""
    placed = [(local_path(one.place), one.size_bytes) for one in files]
    return Deadline(
        [path for path, _ in placed if path is not None],
        sum(size for path, size in placed if path is None),
    )


def choose_next(
    waiting: Sequence[int],
    running: Sequence[int],
    needs: Sequence[int],
    budget: int,
    copies: Sequence[int] = (),
) -> int | None:
    """Choose the file to read next.

    Args:
        waiting: The files that wait, those that need most first.
        running: The files that are read.
        needs: The bytes that each file needs.
        budget: The bytes that may be needed at once; one file alone may need more.
        copies: The bytes that the copy of each file may have on the disk; none when left out.

    Returns:
        The place of the first in ``waiting`` that fits, None when none does.
    """
    left = budget - sum(needs[number] for number in running)
    room = MAX_FETCHED_BYTES - sum(copies[number] for number in running if copies)
    fits = (
        place
        for place, number in enumerate(waiting)
        if not running or (needs[number] <= left and (not copies or copies[number] <= room))
    )
    return next(fits, None)


def bound_copies(tasks: Sequence[MapTask], count: int) -> list[MapTask]:
    """Say how much is fetched of each file behind a URL: what its store tells, and little more.

    Of one whose store tells no size, no more than its share where ``count`` are read at once.
    """
    return [
        task
        if local_path(task.place) is not None
        else msgspec.structs.replace(task, fetch_bytes=_bound_copy(task.size_bytes, count))
        for task in tasks
    ]


def _bound_copy(said_bytes: int, count: int) -> int:
    if said_bytes <= 0:
        return MAX_FETCHED_BYTES // max(count, 1)
    return min(max(said_bytes, _LEAST_COPY_BYTES), MAX_FETCHED_BYTES)


def size_of_copy(task: MapTask) -> int:
    """Return how much of the disk the copy of a file may take."""
    return 0 if local_path(task.place) is not None else task.fetch_bytes


def _describe_death(code: int) -> str:
    if code == -9:  # noqa: PLR2004 - SIGKILL
        return "the process that read it was killed twice, perhaps for lack of memory"
    what = f"signal {-code}" if code < 0 else f"code {code}"
    return f"the process that read it ended twice, with {what}"


def _estimate(task: MapTask) -> int:
    path = local_path(task.place)
    return estimate_raw_remote(task.place, task.size_bytes) if path is None else estimate_raw(path)
