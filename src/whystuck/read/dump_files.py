"""Reads the files of flight-recorder dumps, many at a time: a map over files behind an executor."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.guarded.evidence_files import look_at
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.dumps.flight_recorder import RankDump, RawDump, parse_flight_recorders
from whystuck.parse.dumps.merge import DumpTable, stack_dumps
from whystuck.parse.errors import ParseError
from whystuck.parse.weight import weigh_pickle
from whystuck.read.budget import Deadline, measure_cpu, wait_for
from whystuck.read.content import most_unpacked, read_content
from whystuck.read.shared_columns import Places, Shelf

WHAT = "flight recorder dump"
# A full ring of 20,000 entries with stacks is 35 MB.
MAX_BYTES = 96 << 20
# So much may come out of each that is packed to less than a fortieth.
FREE_BYTES = 16 << 20
# What takes more is read by one process at a time.
_HEAVY_BYTES = 120 << 20
# How many files are read and how many there are.
Progress = Callable[[int, int], None]

# Below this, starting processes takes longer than reading.
_POOL_FROM_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 8 * 1024 * 1024
_CHUNKS_PER_WORKER = 4


@dataclass(frozen=True)
class DumpFile:
    """One file that looks like a dump.

    ``members`` are the groups of its rank, where known, and ``free`` is how many bytes may come out
    of it, however small it is.
    """

    path: Path
    artifact: str
    members: Mapping[str, Sequence[int]] | None = None
    free: int = FREE_BYTES


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank, the best one first: the first that can be read is taken.

    ``others`` are dumps of another recorder of that rank, which are read too.
    """

    rank: int
    files: tuple[DumpFile, ...]
    others: tuple[DumpFile, ...] = ()


@dataclass
class DumpsRead:
    """What came of some files; of ``late`` ranks none was read, as it took too long."""

    tables: list[DumpTable] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    late: int = 0


def read_dump_files(
    ranks: Sequence[RankFiles],
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    deadline: Deadline | None = None,
) -> DumpsRead:
    """Read the dumps of all ranks.

    Args:
        ranks: The files of each rank.
        progress: Called with the number of ranks that are read, and of all.
        executor: Where to read them; processes of this machine when left out.
        deadline: When to read no more; their own when left out.

    Returns:
        Their tables in the order of ranks, and what could not be read.
    """
    ordered = sorted(ranks, key=lambda item: item.rank)
    sizes = [_measure(item) for item in ordered]
    chunks = _cut(ordered, sizes)
    report = progress or _ignore
    deadline = deadline or Deadline([file.path for item in ranks for file in item.files])
    if executor is not None:
        return _join(_map(executor, chunks, report, deadline))
    workers = _count_workers(sum(sizes), len(chunks))
    if workers <= 1 or deadline.is_over:
        return _join(_read_here(chunks, report, deadline))
    context = _fork()
    if context is None:
        with ProcessPoolExecutor(workers) as pool:
            return _join(_map(pool, chunks, report, deadline))
    return _join(_read_forked(context, workers, chunks, report, deadline))


def read_chunk(ranks: Sequence[RankFiles]) -> DumpsRead:
    """Read the dumps of some ranks; this is what a worker does.

    Args:
        ranks: The files of each rank.

    Returns:
        At most one table, and what could not be read.
    """
    vocabulary = Vocabulary()
    slots = [_Slot(item.rank, list(files)) for item in ranks for files in (item.files, item.others)]
    waiting = slots
    while waiting:
        again: list[_Slot] = []
        for batch in _read_batches(waiting):
            raw = [slot.raw for slot in batch if slot.raw is not None]
            with _work.turn if any(slot.is_heavy for slot in batch) else nullcontext():
                results = parse_flight_recorders(raw, vocabulary)
            for slot, result in zip(batch, results, strict=True):
                slot.take(result)
            again += batch
        waiting = again
    gaps = [gap for slot in slots for gap in slot.gaps]
    dumps = [slot.dump for slot in slots if slot.dump is not None]
    return DumpsRead([stack_dumps(dumps)] if dumps else [], gaps)


def _read_batches(slots: Sequence[_Slot]) -> Iterator[list[_Slot]]:
    """Read the next file of each, as many at a time as are parsed together.

    Packed files can be many times as large as they look.
    """
    batch: list[_Slot] = []
    filled = 0
    for slot in slots:
        if slot.read_next() and slot.raw is not None:
            batch.append(slot)
            filled += len(slot.raw.data)
            if filled >= _CHUNK_BYTES:
                yield batch
                batch, filled = [], 0
    if batch:
        yield batch


@dataclass
class _Slot:
    """The files of one recorder of a rank, the best one first, and what came of them."""

    rank: int
    files: list[DumpFile]
    raw: RawDump | None = None
    dump: RankDump | None = None
    gaps: list[Gap] = field(default_factory=list)
    modified_ns: int = 0
    is_heavy: bool = False

    def read_next(self) -> bool:
        """Read the next file into ``raw``; tell whether there is one to parse."""
        self.raw = None
        while self.files:
            file = self.files.pop(0)
            if self.dump is not None:
                if not _are_one_dump(self.dump.artifact, file.artifact):
                    self._miss(file.artifact, f"rank {self.rank} has {self.dump.artifact} already")
                continue
            try:
                data = read_content(file.path, _limit(file))
                self.is_heavy = weigh_pickle(data) > _HEAVY_BYTES
                self.modified_ns = look_at(file.path).modified_ns
            except ParseError as error:
                self._miss(file.artifact, error.message)
            except OSError as error:
                self._miss(file.artifact, error.strerror or str(error))
            else:
                self.raw = RawDump(data, self.rank, file.artifact, file.members)
                return True
        return False

    def take(self, result: RankDump | ParseError) -> None:
        """Take what the file was found to be."""
        if isinstance(result, RankDump):
            self.dump = replace(result, modified_ns=self.modified_ns)
        elif self.raw is not None:
            self._miss(self.raw.artifact, result.message)
        self.raw = None

    def _miss(self, artifact: str, reason: str) -> None:
        self.gaps.append(Gap(self.rank, WHAT, f"{artifact}: {reason}"))


def _limit(file: DumpFile) -> int:
    """Return how large the content of a file may be: of a small one, packed, not any size."""
    return min(MAX_BYTES, most_unpacked(look_at(file.path).size, file.free))


def _are_one_dump(first: str, second: str) -> bool:
    """Tell whether two files are one dump, such as fr.pickle and fr.json, or torch's own copy."""
    one, other = PurePosixPath(first), PurePosixPath(second)
    return one.with_suffix("") == other.with_suffix("") or (
        other.name == records.FR_TORCH_FILE and one.parent == other.parent
    )


def _measure(item: RankFiles) -> int:
    try:
        return look_at((*item.files, *item.others)[0].path).size
    except OSError:
        return 0


def _cut(ranks: Sequence[RankFiles], sizes: Sequence[int]) -> list[Sequence[RankFiles]]:
    """Cut into chunks of neighbours: small enough to keep all workers busy to the end."""
    limit = min(_CHUNK_BYTES, sum(sizes) // (_cpus() * _CHUNKS_PER_WORKER) + 1)
    chunks: list[list[RankFiles]] = []
    filled = limit
    for item, size in zip(ranks, sizes, strict=True):
        if filled >= limit:
            chunks.append([])
            filled = 0
        chunks[-1].append(item)
        filled += size
    return list(chunks)


def _count_workers(size: int, chunks: int) -> int:
    # A process with other threads is not copied: one of them could hold a lock.
    if size < _POOL_FROM_BYTES or threading.active_count() > 1:
        return 1
    return min(_cpus(), chunks)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fork() -> multiprocessing.context.BaseContext | None:
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork") if "fork" in methods else None


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the collector of the workers from touching, and so copying, what they share with us."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class _Work:
    """What a worker finds when it is forked: the files of each chunk, and room for columns."""

    chunks: Sequence[Sequence[RankFiles]] = ()
    shelves: Sequence[Shelf] = ()
    # Whoever reads a heavy dump: one worker at a time.
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)


_work = _Work()


def _read_forked(
    context: multiprocessing.context.BaseContext,
    workers: int,
    chunks: Sequence[Sequence[RankFiles]],
    progress: Progress,
    deadline: Deadline,
) -> list[DumpsRead]:
    """Read chunks in copies of this process, which hand back columns in memory of both."""
    _work.chunks, _work.turn = chunks, context.Lock()
    _work.shelves = [Shelf(sum(map(_measure, chunk))) for chunk in chunks]
    try:
        with _frozen(), ProcessPoolExecutor(workers, context, gc.disable) as pool:
            futures = {
                pool.submit(measure_cpu, _read_to_shelf, number): len(chunk)
                for number, chunk in enumerate(chunks)
            }
            wait_for(futures, progress, deadline)
        results = []
        for (future, ranks), shelf in zip(futures.items(), _work.shelves, strict=True):
            if future.cancelled():
                results.append(DumpsRead(late=ranks))
                continue
            (read, places), _ = future.result()
            if places is not None:
                read.tables[0].columns = shelf.fetch(places)
            results.append(read)
    finally:
        _work.chunks = _work.shelves = ()
        _work.turn = nullcontext()
    return results


def _read_to_shelf(number: int) -> tuple[DumpsRead, Places | None]:
    """Read a chunk, and leave its columns on its shelf when they fit on it."""
    read = read_chunk(_work.chunks[number])
    places = None
    if read.tables:
        table = read.tables[0]
        places = _work.shelves[number].leave(table.columns)
        if places is not None:
            table.columns = table.columns.cut(0, 0)
    return read, places


def _map(
    executor: Executor,
    chunks: Sequence[Sequence[RankFiles]],
    progress: Progress,
    deadline: Deadline,
) -> list[DumpsRead]:
    futures = {executor.submit(measure_cpu, read_chunk, chunk): len(chunk) for chunk in chunks}
    wait_for(futures, progress, deadline)
    return [
        DumpsRead(late=ranks) if future.cancelled() else future.result()[0]
        for future, ranks in futures.items()
    ]


def _read_here(
    chunks: Sequence[Sequence[RankFiles]], progress: Progress, deadline: Deadline
) -> list[DumpsRead]:
    results, done, total = [], 0, sum(map(len, chunks))
    for chunk in chunks:
        results.append(DumpsRead(late=len(chunk)) if deadline.is_over else read_chunk(chunk))
        done += len(chunk)
        progress(done, total)
    return results


def _join(results: Sequence[DumpsRead]) -> DumpsRead:
    return DumpsRead(
        [table for result in results for table in result.tables],
        [gap for result in results for gap in result.gaps],
        sum(result.late for result in results),
    )


def _ignore(_done: int, _total: int) -> None:
    """Tell nobody."""
