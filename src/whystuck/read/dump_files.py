"""Reads the files of flight-recorder dumps, many at a time: a map over files behind an executor."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
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
from whystuck.read.budget import Deadline, count_cpus
from whystuck.read.content import most_unpacked, read_content
from whystuck.read.pool import (
    Progress,
    can_fork,
    forked,
    map_parts,
    tell_nobody,
)
from whystuck.read.shared_columns import Places, SharedColumns

WHAT = "flight recorder dump"
# A full ring of 20,000 entries with stacks is 35 MB.
MAX_BYTES = 96 << 20
# So much may come out of each that is packed to less than a fortieth.
FREE_BYTES = 16 << 20
# What takes more is read by one process at a time.
_HEAVY_BYTES = 120 << 20

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
    parts = [(chunk, len(chunk)) for chunk in chunks]
    report = progress or tell_nobody
    deadline = deadline or Deadline([file.path for item in ranks for file in item.files])
    workers = _count_workers(sum(sizes), len(chunks))
    if executor is None and workers > 1 and not deadline.is_over:
        results = _read_forked(workers, parts, report, deadline)
    else:
        results = map_parts(executor, read_chunk, parts, report, deadline)
    return _join(
        [
            DumpsRead(late=len(chunk)) if result is None else result
            for chunk, result in zip(chunks, results, strict=True)
        ]
    )


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
    limit = min(_CHUNK_BYTES, sum(sizes) // (count_cpus() * _CHUNKS_PER_WORKER) + 1)
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
    return 1 if size < _POOL_FROM_BYTES or not can_fork() else min(count_cpus(), chunks)


@dataclass
class _Work:
    """What a worker finds when it is forked: the files of each chunk, and room for columns."""

    chunks: Sequence[Sequence[RankFiles]] = ()
    shelves: Sequence[SharedColumns] = ()
    # Whoever reads a heavy dump: one worker at a time.
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)


_work = _Work()


def _read_forked(
    workers: int,
    parts: Sequence[tuple[Sequence[RankFiles], int]],
    progress: Progress,
    deadline: Deadline,
) -> list[DumpsRead | None]:
    """Read chunks in copies of this process, which hand back columns in memory of both."""
    _work.chunks = [chunk for chunk, _ in parts]
    _work.turn = multiprocessing.get_context("fork").Lock()
    _work.shelves = [SharedColumns(sum(map(_measure, chunk))) for chunk in _work.chunks]
    try:
        numbers = [(number, count) for number, (_, count) in enumerate(parts)]
        with forked(workers) as pool:
            results = map_parts(pool, _read_to_shelf, numbers, progress, deadline)
        return [
            _fetch(*result, shelf) if result else None
            for result, shelf in zip(results, _work.shelves, strict=True)
        ]
    finally:
        _work.chunks = _work.shelves = ()
        _work.turn = nullcontext()


def _fetch(read: DumpsRead, places: Places | None, shelf: SharedColumns) -> DumpsRead:
    if places is not None:
        read.tables[0].columns = shelf.get(places)
    return read


def _read_to_shelf(number: int) -> tuple[DumpsRead, Places | None]:
    """Read a chunk, and leave its columns on its shelf when they fit on it."""
    read = read_chunk(_work.chunks[number])
    places = None
    if read.tables:
        table = read.tables[0]
        places = _work.shelves[number].put(table.columns)
        if places is not None:
            table.columns = table.columns.cut(0, 0)
    return read, places


def _join(results: Sequence[DumpsRead]) -> DumpsRead:
    return DumpsRead(
        [table for result in results for table in result.tables],
        [gap for result in results for gap in result.gaps],
        sum(result.late for result in results),
    )
