"""The map: one file in, the tables of its rank out. It runs anywhere, and is told all it needs."""

from __future__ import annotations

import gc
import hashlib
import resource
import sys
import time
from pathlib import Path

import msgspec

from whystuck import __version__
from whystuck.evidence.decoding import msgpack_decoder
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables
from whystuck.guarded.evidence_files import look_at, open_evidence
from whystuck.guarded.remote import (
    MAX_FETCHED_BYTES,
    fetched,
    join,
    local_path,
    read_bytes,
    written,
)
from whystuck.parse.errors import ParseError
from whystuck.read.content import FREE_BYTES, FreeBytes
from whystuck.read.traces.detection import explain_no_trace
from whystuck.read.traces.files import read_trace_file
from whystuck.read.traces.partials import (
    MAX_BYTES,
    SUFFIX,
    decode_partial,
    encode_partial,
    name_partial,
)
from whystuck.tracing.metrics import CROSS_METRICS, METRICS
from whystuck.tracing.reduce import find_detail, measure_rank, with_rank

_PIECE_BYTES = 4 << 20
_KEY_BYTES = 16
_MAX_REASON = 300
_MANY_EVENTS = 20_000
# The tables of so many are as small as what else is held of a rank.
_FEW_EVENTS = 200


class MapTask(msgspec.Struct, frozen=True, kw_only=True):
    """One file to map.

    ``rank`` is what the name says, -1 when nothing; ``rank_from`` is one of `RANK_SOURCES`.
    ``partials`` is where the partial goes, empty when its bytes are to be handed back. ``name`` is
    that of its file; empty when what was made before is to be found again, by its content. ``mark``
    stands for the content where the store tells it, and ``size_bytes`` is the size of the file. Of
    a packed one, ``free_bytes`` may come out, however small it is. Of one behind a URL no more than
    ``fetch_bytes`` are fetched.
    """

    place: str
    artifact: str
    rank: int = -1
    rank_from: str = "auto"
    is_sure: bool = False
    mark: str = ""
    size_bytes: int = 0
    options: TraceOptions = TraceOptions()
    partials: str = ""
    name: str = ""
    free_bytes: int = FREE_BYTES
    fetch_bytes: int = MAX_FETCHED_BYTES


class MapDone(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one file.

    ``state`` is ``done``, ``kept`` (a partial of it was there), ``other`` (it is no trace),
    ``late`` (not read, as it would have taken too long) or ``bad``, for a ``reason``. The partial
    is at ``place``, or else in ``data``. ``peak_bytes`` is the most memory that the process ever
    had (0 where it is held), ``elapsed_s`` the time the file took, and ``cpu_s`` the CPU.
    """

    state: str
    header: RankHeader = RankHeader()
    place: str = ""
    data: bytes = b""
    reason: str = ""
    peak_bytes: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0


class MapHeld(MapDone, frozen=True, kw_only=True):
    """What came of a small file that this process has mapped itself: the tables as they are."""

    made: RankTables = RankTables()


RANK_SOURCES = ("auto", "trace", "name", "order")

_TASKS = msgpack_decoder(MapTask)


def run_task(data: bytes) -> bytes:
    """Map one file; this is what a worker of any engine calls.

    Args:
        data: A `MapTask` as msgpack.

    Returns:
        A `MapDone` as msgpack.
    """
    return msgspec.msgpack.encode(run_here(_TASKS.decode(data)))


def run_here(task: MapTask, *, may_hold: bool = False) -> MapDone:
    """Map one file for this process.

    Args:
        task: What to do.
        may_hold: Whether a `MapHeld` may come of a small trace whose partial nobody keeps: to write
            and read that takes as long as to measure it.

    Returns:
        What came of it, and what it took.
    """
    started, used = time.monotonic(), time.process_time()
    done = map_file(task, may_hold=may_hold)
    # What a large trace has left in cycles must not add up over the files of a long-lived worker.
    # To look for what small ones have left takes longer than to read them.
    if done.header.events > _MANY_EVENTS:
        gc.collect()
    return msgspec.structs.replace(
        done,
        # The kernel may take 2 ms for it on a busy machine, as long as a small trace takes.
        peak_bytes=0 if isinstance(done, MapHeld) else measure_peak(),
        elapsed_s=time.monotonic() - started,
        cpu_s=time.process_time() - used,
    )


def map_file(task: MapTask, *, may_hold: bool = False) -> MapDone:
    """Map one file to a partial.

    Args:
        task: What to do.
        may_hold: See `run_here`.

    Returns:
        What came of it; nothing that is wrong with the file is raised.
    """
    try:
        if task.place.endswith(SUFFIX):
            return _take_partial(task)
        return _map_trace(task, may_hold=may_hold)
    except ParseError as error:
        return _bad(error.message)
    except OSError as error:
        return _bad(error.strerror or str(error))
    except MemoryError:
        return _bad("it needs more memory than there is (`--memory`)")
    except Exception as error:  # noqa: BLE001 - one hostile file must not end the map of all
        return _bad(f"it cannot be measured ({type(error).__name__}: {error})")


def measures_of_this_version() -> str:
    """Tell what this version measures; partials of others are not mixed with ours."""
    listed = [(one.name, one.columns) for one in METRICS]
    crossed = [(one.names, one.needs) for one in CROSS_METRICS]
    text = repr((__version__, listed, crossed)).encode()
    return hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()


def measure_peak() -> int:
    """Return the most bytes of memory that this process ever had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _map_trace(task: MapTask, *, may_hold: bool) -> MapDone:
    if task.partials and not task.name and task.mark and (done := _find_kept(task, task.mark)):
        return done
    with fetched(task.place, task.fetch_bytes) as path:
        return _map_local(task, path, may_hold=may_hold)


def _map_local(task: MapTask, path: Path, *, may_hold: bool) -> MapDone:
    if not task.is_sure and (reason := explain_no_trace(path, FreeBytes(task.free_bytes))):
        # A name with a rank promises something.
        is_promised = task.rank >= 0 and not look_at(path).size
        return MapDone(state="bad" if is_promised else "other", reason=reason)
    mark = task.mark
    if task.partials and not task.name and not mark:
        mark = _fingerprint(path)
        if done := _find_kept(task, mark):
            return done
    detail = find_detail(task.options)
    trace = read_trace_file(path, task.artifact, detail=detail, free_bytes=task.free_bytes)
    made = measure_rank(trace, task.options)
    made = choose_rank(made, task.rank, task.rank_from)
    header = msgspec.structs.replace(made.header, fingerprint=mark)
    if may_hold and task.name and header.events <= _FEW_EVENTS:
        return MapHeld(state="done", header=header, made=made)
    data = encode_partial(RankTables(header, made.tables), task.options, measures_of_this_version())
    if not task.partials:
        return MapDone(state="done", header=header, data=data)
    place = _partial_place(task, mark)
    with written(place) as stream:
        stream.write(data)
    return MapDone(state="done", header=header, place=place)


def choose_rank(made: RankTables, named: int, source: str) -> RankTables:
    """Give a trace the rank that its name says, where it tells none itself.

    Args:
        made: The tables of the trace.
        named: The rank that the name of the file says, -1 when nothing.
        source: One of `RANK_SOURCES`: which of the two counts.

    Returns:
        The tables.
    """
    own = made.header.rank
    wanted = {"auto": own if own >= 0 else named, "name": named, "order": -1}.get(source, own)
    return made if wanted == own else with_rank(made, wanted)


def _take_partial(task: MapTask) -> MapDone:
    """Check a partial that was made elsewhere; it is read again where it lies."""
    partial = decode_partial(read_bytes(task.place, MAX_BYTES))
    if partial.measures != measures_of_this_version():
        return _bad("the partial was made by another version of whystuck: make it again")
    if _without_tables(partial.options) != _without_tables(task.options):
        return _bad("the partial was made with other options: give the same here")
    return MapDone(state="kept", header=partial.header, place=task.place)


def _find_kept(task: MapTask, mark: str) -> MapDone | None:
    """Find the partial of the same content, made with the same options by the same version."""
    place = _partial_place(task, mark)
    local = local_path(place)
    if local is not None and not local.is_file():
        return None
    try:
        partial = decode_partial(read_bytes(place, MAX_BYTES))
    except (ParseError, OSError):
        return None  # none there, or one that was cut off: it is made again
    return MapDone(state="kept", header=partial.header, place=place)


def _partial_place(task: MapTask, mark: str) -> str:
    if task.name:
        return join(task.partials, name_partial(task.name))
    chosen = msgspec.json.encode(
        (mark, task.artifact, task.rank, task.rank_from, task.options, measures_of_this_version())
    )
    key = hashlib.blake2b(chosen, digest_size=_KEY_BYTES).hexdigest()
    return join(task.partials, name_partial(key))


def _without_tables(options: TraceOptions) -> TraceOptions:
    return msgspec.structs.replace(options, tables=())


def _fingerprint(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    with open_evidence(path) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _bad(reason: str) -> MapDone:
    return MapDone(state="bad", reason=" ".join(reason.split())[:_MAX_REASON])
