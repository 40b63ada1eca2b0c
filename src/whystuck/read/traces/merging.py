"""The page that joins the stages of a merge: traces of several ranks in, one trace out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap
from whystuck.evidence.ranks import format_ranks, name_ranks
from whystuck.evidence.traces.tables import RankTables
from whystuck.guarded.evidence_files import open_evidence
from whystuck.guarded.remote import fetched
from whystuck.parse.errors import ParseError
from whystuck.parse.traces.header import find_base, find_rank
from whystuck.parse.traces.merge import Outline, PidSpace, RankShift, merge_rank, read_outline
from whystuck.read.budget import LATE, Deadline, keep_first, tell_left_out
from whystuck.read.traces.detection import WHAT
from whystuck.read.traces.files import read_pieces
from whystuck.read.traces.inputs import TraceInput, find_inputs, find_promised
from whystuck.read.traces.local import LocalEngine, set_deadline
from whystuck.read.traces.plan import Progress, ReadPlan
from whystuck.read.traces.reading import fold_traces
from whystuck.tracing.collectives.matched_ops import measure_collectives

_NS_PER_US = 1000
_GZIP = 31


@dataclass(frozen=True)
class Source:
    """A trace that is merged. ``error_ns`` is -1 where its clock could not be compared."""

    input: TraceInput
    rank: int
    outline: Outline
    base_ns: int
    offset_ns: int = 0
    error_ns: int = -1


@dataclass(frozen=True)
class MergePlan:
    """What is merged, in order of ranks, and what is to be told of it."""

    sources: tuple[Source, ...]
    gaps: tuple[Gap, ...]

    @property
    def zero_ns(self) -> int:
        """The earliest time of all, on the clock of the reference."""
        return min((_begin(one) for one in self.sources), default=0)


def plan_merge(
    places: Sequence[str],
    ranks: Collection[int] = (),
    *,
    by_collectives: bool = True,
    progress: Progress | None = None,
) -> MergePlan:
    """Find the traces to merge, and by how much the clock of each is moved.

    Args:
        places: Paths and URLs of traces, and of folders of them.
        ranks: The ranks to merge; all when empty.
        by_collectives: Whether to compare clocks by the ends of collectives.
        progress: Called with the number of files that were read, and of all.

    Returns:
        The plan. What is past the deadline of `whystuck.read.budget` is not in it, but told in its
        gaps; to write what is planned takes about as long as to plan it.

    Raises:
        UsageError: A place is missing, holds no trace, or has none of the ranks.
    """
    inputs, gaps = find_inputs(places)
    wanted = [one for one in inputs if not ranks or one.rank < 0 or one.rank in ranks]
    named = _keep_first(wanted, gaps)
    deadline, late = set_deadline(named), False
    found, others, free = dict[int, Source](), dict[str, Gap](), 0
    for number, one in enumerate(named, 1):
        if deadline.is_over:
            late = _leave_out(named[number - 1 :], gaps)
            break
        source = _outline(one, gaps, others)
        if progress is not None:
            progress(number, len(named))
        if source is None or (ranks and source.rank >= 0 and source.rank not in ranks):
            continue
        free = _free_rank(found, free)
        rank = source.rank if source.rank >= 0 else free
        if rank in found:
            reason = f"{one.artifact}: rank {rank} has {found[rank].input.artifact}"
            gaps.append(Gap(rank, WHAT, reason))
        elif not ranks or rank in ranks:
            found[rank] = replace(source, rank=rank)
    sources = [found[rank] for rank in sorted(found)]
    _check(places, sources, ranks)
    gaps += _list_promised(others, sources)
    if by_collectives and len(sources) > 1:
        sources = _align(sources, deadline, gaps)
    gaps += [] if late else _list_missing(ranks, found)
    return MergePlan(tuple(sources), tuple(gaps))


def merge_traces(plan: MergePlan, progress: Progress | None = None) -> Iterator[bytes]:
    """Write traces as one; no more than a piece of one of them is held at a time.

    Args:
        plan: What to merge.
        progress: Called with the number of traces that are written, and of all.

    Yields:
        The merged trace, as JSON.
    """
    pids = PidSpace()
    zero = plan.zero_ns
    yield b'{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":%d,\n' % zero
    yield b'"whystuck":%s,\n' % msgspec.json.encode(
        {"merged": [_describe(s) for s in plan.sources]}
    )
    yield b'"traceEvents":['
    separator = b"\n"
    for position, source in enumerate(plan.sources):
        shift = RankShift(source.rank, position, source.base_ns - source.offset_ns - zero)
        with _open(source.input) as pieces:
            for part in merge_rank(pieces, shift, pids):
                if part:
                    yield separator + part
                    separator = b",\n"
        if progress is not None:
            progress(position + 1, len(plan.sources))
    yield b"\n]}\n"


def pack(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Pack a stream with gzip."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    for part in parts:
        if packed := packer.compress(part):
            yield packed
    yield packer.flush()


def describe_clocks(plan: MergePlan) -> str:
    """Say by what the clocks of the merged ranks were aligned."""
    aligned = [one for one in plan.sources if one.error_ns >= 0]
    others = [one.rank for one in plan.sources if one.error_ns < 0]
    if not aligned:
        return "clocks: each trace by the clock of its host"
    error_us = max(one.error_ns for one in aligned) / _NS_PER_US
    spread_us = max(abs(one.offset_ns) for one in aligned) / _NS_PER_US
    text = (
        f"clocks: {name_ranks(one.rank for one in aligned)} aligned by the ends of collectives, "
        f"moved by up to {spread_us:.4g} us, to within {error_us:.3g} us"
    )
    return f"{text}; ranks {format_ranks(others)} by the clocks of their hosts" if others else text


def _begin(source: Source) -> int:
    return source.base_ns + (source.outline.first_ns or 0) - source.offset_ns


@contextmanager
def _open(one: TraceInput) -> Iterator[Iterator[bytes]]:
    with fetched(one.place) as path, open_evidence(path) as stream:
        yield _until_damage(read_pieces(stream))


def _until_damage(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Give what lies before a damage; that there is one was told by the outline."""
    try:
        yield from pieces
    except ParseError:
        return


def _outline(one: TraceInput, gaps: list[Gap], others: dict[str, Gap]) -> Source | None:
    if one.is_partial:
        return None
    try:
        with _open(one) as pieces:
            outline = read_outline(pieces)
    except (ParseError, OSError) as error:
        reason = error.message if isinstance(error, ParseError) else error.strerror or str(error)
        gap = Gap(one.rank if one.rank >= 0 else None, WHAT, f"{one.artifact}: {reason}")
        if one.is_sure:
            gaps.append(gap)
        else:
            others[one.place] = gap
        return None
    rank = find_rank(outline.keys)
    rank = rank if rank >= 0 else one.rank
    told = rank if rank >= 0 else None
    if outline.dropped:
        reason = f"{one.artifact}: {outline.dropped} events cannot be read, and are left out"
        gaps.append(Gap(told, "events", reason))
    if not outline.is_whole:
        gaps.append(Gap(told, WHAT, f"{one.artifact}: it ends early"))
    base, zero = find_base(outline.keys, outline.first_ns or 0)
    return Source(one, rank, outline, base - zero)


def _list_promised(others: dict[str, Gap], sources: Sequence[Source]) -> list[Gap]:
    promised = find_promised(list(others), (one.input.place for one in sources))
    return [others[place] for place in others if place in promised]


def _list_missing(ranks: Collection[int], found: Collection[int]) -> list[Gap]:
    """List ranks without a trace; where some were not read, it is not known whose those are."""
    return [Gap(rank, WHAT, "none was found") for rank in sorted(set(ranks) - set(found))]


def _leave_out(inputs: Sequence[TraceInput], gaps: list[Gap]) -> bool:
    gaps.append(tell_left_out(WHAT, len(inputs)))
    return True


def _keep_first(inputs: Sequence[TraceInput], gaps: list[Gap]) -> Sequence[TraceInput]:
    kept, more = keep_first(inputs, WHAT)
    gaps += more
    return kept


def _free_rank(found: Collection[int], least: int) -> int:
    """Return the first number from ``least`` on that is no rank."""
    while least in found:
        least += 1
    return least


def _check(places: Sequence[str], sources: Sequence[Source], ranks: Collection[int]) -> None:
    if sources:
        return
    where = ", ".join(places)
    if ranks:
        raise UsageError(
            f"there is no trace of {name_ranks(ranks)} in {where}",
            hint="leave `--ranks` out to merge all",
        )
    raise UsageError(
        f"there is no trace in {where}",
        hint="a trace is what torch.profiler's `export_chrome_trace` writes, packed or not",
    )


def _align(sources: list[Source], deadline: Deadline, gaps: list[Gap]) -> list[Source]:
    """Estimate how far the clocks of the hosts are apart."""
    plan = ReadPlan(engine=LocalEngine(deadline=deadline))
    options = msgspec.structs.replace(
        plan.options, tables=("collective_calls",), only_tables=True, all_steps=True
    )
    held: list[RankTables] = []
    take: Callable[[RankTables], None] = held.append
    read = fold_traces([one.input for one in sources], replace(plan, options=options), take)
    if late := len(sources) - read.files if read.is_partial else 0:
        gaps.append(Gap(None, "clocks", f"{late} more were not compared: {LATE}"))
    blame = measure_collectives(held, options)["rank_blame"]
    if not len(blame):
        return sources
    known = dict(
        zip(
            blame["rank"].tolist(),
            zip(blame["clock_offset_ns"].tolist(), blame["clock_error_ns"].tolist(), strict=True),
            strict=True,
        )
    )
    by_artifact = {one.header.artifact: known.get(one.header.rank, (0, -1)) for one in held}
    aligned = []
    for one in sources:
        offset, error = by_artifact.get(one.input.artifact, (0, -1))
        aligned.append(replace(one, offset_ns=offset, error_ns=error) if error >= 0 else one)
    return aligned


def _describe(source: Source) -> dict[str, Any]:
    return {
        "rank": source.rank,
        "artifact": source.input.artifact or Path(source.input.place).name,
        "clock": "collectives" if source.error_ns >= 0 else "host",
        "clock_offset_ns": source.offset_ns,
        "clock_error_ns": source.error_ns,
        "keys": source.outline.keys,
    }
