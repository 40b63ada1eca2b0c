"""From trace files to one summary: map, choose one trace for each rank, reduce."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap
from whystuck.evidence.ranks import MAX_RANK
from whystuck.evidence.traces.tables import RankHeader, RankTables, TraceSummary
from whystuck.guarded.remote import join, read_bytes, written
from whystuck.guarded.scratch import scratch_folder
from whystuck.parse.errors import ParseError
from whystuck.read.budget import keep_first, tell_left_out
from whystuck.read.content import share_free
from whystuck.read.traces.detection import WHAT
from whystuck.read.traces.inputs import TraceInput, find_promised
from whystuck.read.traces.mapping import MapDone, MapHeld, MapTask
from whystuck.read.traces.partials import MAX_BYTES, decode_partial, name_partial, unpack_tables
from whystuck.read.traces.plan import Progress, ReadPlan, RowSink
from whystuck.tracing.metrics import CROSS_METRICS, METRICS
from whystuck.tracing.reduce import reduce_ranks, with_rank

# A newer trace of a rank that has less than this share of the events was cut off.
_WHOLE_SHARE = 0.5


@dataclass
class TracesRead:
    """What came of trace files.

    ``others`` are the files that are no traces, ``kept`` those of which a partial was there, and
    ``peak_bytes`` the most memory that one process of the map had. ``is_partial`` tells that some
    files were not read: they are too many, or it would have taken too long.
    """

    summary: TraceSummary = field(default_factory=TraceSummary)
    gaps: list[Gap] = field(default_factory=list)
    files: int = 0
    kept: int = 0
    others: int = 0
    peak_bytes: int = 0
    is_partial: bool = False


@dataclass(frozen=True)
class _Mapped:
    """A file that was mapped: the rank it is taken for, and where its partial lies.

    ``made`` are its tables where they are held.
    """

    header: RankHeader
    place: str
    artifact: str
    made: RankTables | None = None


def read_traces(
    inputs: Sequence[TraceInput],
    plan: ReadPlan | None = None,
    *,
    progress: Progress | None = None,
    sink: RowSink | None = None,
) -> TracesRead:
    """Read traces and partials, and put what they tell together.

    Args:
        inputs: The files.
        plan: How; the defaults when left out.
        progress: Called with the number of files that are mapped, and of all.
        sink: Gets the tables with rows for each event.

    Returns:
        The summary of one trace a rank. Files that cannot be read are told in the gaps.
    """
    plan = plan or ReadPlan()
    with scratch_folder() as scratch:
        read = TracesRead()
        mapped = _map(inputs, plan, str(scratch), read, progress)
        chosen = _number(_choose(mapped, plan, read.gaps), read.gaps)
        read.summary = _reduce(chosen, plan, read.gaps, sink)
    read.gaps += _note_truncated(read.summary.ranks)
    return read


def fold_traces(
    inputs: Sequence[TraceInput],
    plan: ReadPlan,
    take: Callable[[RankTables], None],
    *,
    progress: Progress | None = None,
) -> TracesRead:
    """Read traces and partials, and hand on what each tells: nothing of all ranks is held.

    Args:
        inputs: The files.
        plan: How.
        take: Gets the tables of one trace of each rank, in ascending order.
        progress: Called with the number of files that are mapped, and of all.

    Returns:
        The headers of the traces that were handed on; those that cannot be read are in the gaps.
    """
    with scratch_folder() as scratch:
        read = TracesRead()
        mapped = _map(inputs, plan, plan.partials or str(scratch), read, progress)
        chosen = _number(_choose(mapped, plan, read.gaps), read.gaps)
        headers = []
        for tables in _load(chosen, read.gaps):
            take(tables)
            headers.append(tables.header)
    read.summary = TraceSummary(tuple(headers))
    read.gaps += _note_truncated(headers)
    return read


def map_traces(
    inputs: Sequence[TraceInput], plan: ReadPlan, *, progress: Progress | None = None
) -> TracesRead:
    """Map traces to partials, and reduce nothing: what a training node does.

    Args:
        inputs: The files.
        plan: How; ``partials`` tells where the partials go.
        progress: Called with the number of files that are mapped, and of all.

    Returns:
        The headers of the traces, without tables.

    Raises:
        UsageError: There is no place for partials.
    """
    if not plan.partials:
        raise UsageError("there is no place for partials", hint="give `--partials DIR`")
    read = TracesRead()
    mapped = _map(inputs, plan, "", read, progress)
    headers = sorted((one.header for one in mapped), key=_header_order)
    read.summary = TraceSummary(tuple(headers))
    return read


def _map(
    inputs: Sequence[TraceInput],
    plan: ReadPlan,
    scratch: str,
    read: TracesRead,
    progress: Progress | None,
) -> list[_Mapped]:
    partials = plan.partials or (scratch if plan.engine.has_our_disk else "")
    inputs, gaps = keep_first(inputs, WHAT)
    tasks = _make_tasks(inputs, plan, partials)
    late = 0
    members: dict[tuple[int, ...], list[int]] = {}
    mapped: list[tuple[int, _Mapped]] = []
    bad: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    for done, (number, result) in enumerate(plan.engine.map(tasks), start=1):
        task = tasks[number]
        read.peak_bytes = max(read.peak_bytes, result.peak_bytes)
        if result.state == "other":
            others.append((number, result.reason))
        elif result.state == "bad":
            bad.append((number, result.reason))
        elif result.state == "late":
            late += 1
        else:
            made = result.made if isinstance(result, MapHeld) else None
            place = result.place if made else result.place or _keep(result, scratch, number)
            header = _share_members(result.header, members)
            mapped.append((number, _Mapped(header, place, task.artifact, made)))
            read.kept += result.state == "kept" and not inputs[number].is_partial
        if progress is not None:
            progress(done, len(tasks))
    read.files, read.others = len(mapped), len(others)
    traces = (tasks[number].place for number, _ in mapped)
    promised = find_promised([tasks[number].place for number, _ in others], traces)
    bad += [one for one in others if tasks[one[0]].place in promised]
    read.gaps += [_make_gap(tasks[number], reason) for number, reason in sorted(bad)]
    read.gaps += [*gaps, *([tell_left_out(WHAT, late)] if late else [])]
    read.is_partial = bool(late or gaps)
    return [one for _, one in sorted(mapped, key=lambda item: item[0])]


def _make_tasks(inputs: Sequence[TraceInput], plan: ReadPlan, partials: str) -> list[MapTask]:
    free_bytes = share_free(len(inputs))
    return [
        MapTask(
            place=one.place,
            artifact=one.artifact,
            rank=one.rank,
            rank_from=plan.rank_from,
            is_sure=one.is_sure,
            mark=one.mark,
            size_bytes=one.size_bytes,
            options=plan.options,
            partials=partials,
            name="" if plan.partials else f"{number:08d}",
            free_bytes=free_bytes,
        )
        for number, one in enumerate(inputs)
    ]


def _make_gap(task: MapTask, reason: str) -> Gap:
    return Gap(task.rank if task.rank >= 0 else None, WHAT, f"{task.artifact}: {reason}")


def _share_members(header: RankHeader, known: dict[tuple[int, ...], list[int]]) -> RankHeader:
    """Hold the members of a group once: every rank of a large job names all of them."""
    groups = {name: known.setdefault(tuple(ranks), ranks) for name, ranks in header.groups.items()}
    return msgspec.structs.replace(header, groups=groups)


def _keep(result: MapDone, folder: str, number: int) -> str:
    """Write a partial that was handed back, rather than hold all of them."""
    place = join(folder, name_partial(f"{number:08d}"))
    with written(place) as stream:
        stream.write(result.data)
    return place


def _header_order(header: RankHeader) -> tuple[int, str]:
    return header.rank, header.artifact


def _choose(mapped: Sequence[_Mapped], plan: ReadPlan, gaps: list[Gap]) -> list[_Mapped]:
    """Take one trace of each rank; those without a rank are all taken."""
    chosen = [one for one in mapped if one.header.rank < 0]
    by_rank: dict[int, list[_Mapped]] = defaultdict(list)
    for one in mapped:
        if one.header.rank >= 0:
            by_rank[one.header.rank].append(one)
    for rank, several in sorted(by_rank.items()):
        best = max(several, key=_preference(several, plan.duplicates))
        chosen.append(best)
        for one in several:
            if one is not best:
                reason = f"{one.artifact}: rank {rank} has {best.artifact}, which is taken"
                gaps.append(Gap(rank, WHAT, reason))
    return chosen


def _preference(
    several: Sequence[_Mapped], duplicates: str
) -> Callable[[_Mapped], tuple[float, float, str]]:
    most = max(one.header.events for one in several)

    def newest(one: _Mapped) -> tuple[float, float, str]:
        header = one.header
        return header.events >= _WHOLE_SHARE * most, header.ended_ns, one.artifact

    def longest(one: _Mapped) -> tuple[float, float, str]:
        header = one.header
        return header.ended_ns - header.started_ns, header.ended_ns, one.artifact

    return longest if duplicates == "longest" else newest


def _number(chosen: Sequence[_Mapped], gaps: list[Gap]) -> list[_Mapped]:
    """Number traces that tell no rank, when none does; leave them out beside others that do."""
    ranked = [one for one in chosen if one.header.rank >= 0]
    unranked = [one for one in chosen if one.header.rank < 0]
    if not unranked:
        return _sort(ranked)
    if ranked:
        reason = "its rank cannot be told (hint: `--rank-from name` or `--rank-from order`)"
        gaps += [Gap(None, WHAT, f"{one.artifact}: {reason}") for one in unranked]
        return _sort(ranked)
    if len(unranked) == 1:
        reason = f"{unranked[0].artifact} tells no rank: it is taken as rank 0"
    else:
        reason = f"{len(unranked)} traces tell no rank: they are numbered in the order of names"
    gaps.append(Gap(None, "ranks of traces", reason))
    return [
        replace(one, header=msgspec.structs.replace(one.header, rank=rank))
        for rank, one in enumerate(unranked[: MAX_RANK + 1])
    ]


def _sort(mapped: Sequence[_Mapped]) -> list[_Mapped]:
    return sorted(mapped, key=lambda one: _header_order(one.header))


def _reduce(
    chosen: Sequence[_Mapped], plan: ReadPlan, gaps: list[Gap], sink: RowSink | None
) -> TraceSummary:
    """Reduce partials one after the other, so that rows of events are never held of all ranks."""
    held: list[RankTables] = []
    rows = {one.name for one in METRICS if one.is_per_event}
    needed = {name for one in CROSS_METRICS for name in one.needs}
    slimming = [] if plan.keep_rows else [one.slim for one in CROSS_METRICS if one.slim]
    without = set() if plan.keep_rows else set(rows)
    for tables in _load(chosen, gaps):
        kept = {}
        for name, table in tables.tables.items():
            if name in rows and sink is not None:
                sink.write_rows(name, table)
            if name not in rows or name in needed or plan.keep_rows:
                kept[name] = table
        for slim in slimming:
            slimmed = slim(RankTables(tables.header, kept)).tables
            without.update(slimmed)
            kept |= slimmed
        held.append(RankTables(tables.header, kept))
    return reduce_ranks(held, plan.options, without=without)


def _load(chosen: Sequence[_Mapped], gaps: list[Gap]) -> Iterator[RankTables]:
    """Read partials one after the other, as tables of the ranks they are taken for."""
    texts: dict[str, str] = {}
    for one in chosen:
        try:
            tables = one.made or unpack_tables(
                decode_partial(read_bytes(one.place, MAX_BYTES)), None, texts
            )
        except (ParseError, OSError) as error:
            gaps.append(Gap(one.header.rank, WHAT, f"{one.artifact}: {_explain(error)}"))
            continue
        if tables.header.rank != one.header.rank:
            tables = with_rank(tables, one.header.rank)
        # The same header, so that the members of groups are held once.
        yield RankTables(one.header, tables.tables)


def _explain(error: ParseError | OSError) -> str:
    return error.message if isinstance(error, ParseError) else error.strerror or str(error)


def _note_truncated(headers: Iterable[RankHeader]) -> list[Gap]:
    """Hand on what the parser could not read of the traces that were taken."""
    return [
        Gap(header.rank, gap.what or WHAT, gap.reason)
        for header in headers
        for gap in header.gaps
        if header.rank >= 0
    ]
