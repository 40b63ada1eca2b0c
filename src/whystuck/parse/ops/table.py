"""Op logs of many ranks to one table, with times of the wall clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import CallSite
from whystuck.evidence.ops.log import (
    COLUMNS,
    TIMES,
    UNKNOWN,
    Column,
    OpGroup,
    OpLog,
    Ops,
    OpShape,
    OpThread,
)
from whystuck.parse.ops.log import Clock, RankOps
from whystuck.parse.ops.numbers import number_ops

T = TypeVar("T", bound=Hashable)

# Clocks that are adjusted run faster or slower by no more than this; else somebody has set one.
_MAX_DRIFT = 1e-3
# Processes of one host that began on it agree on what lies between its two clocks.
_SAME_HOST_NS = 10_000_000_000
_LATEST_NS = 1 << 61
_TRANSFERS = {"send", "recv", "recv_any"}


@dataclass(frozen=True)
class OpFile:
    """An op log that was read, whose it is and what to cite."""

    rank: int
    artifact: str
    ops: RankOps


def merge_op_logs(files: Iterable[OpFile]) -> Ops:
    """Join the op logs of all ranks.

    Args:
        files: At most one for each rank.

    Returns:
        One table, sorted by rank, then by order of issue; times are wall clock.
    """
    ordered = sorted(files, key=lambda file: file.rank)
    if not ordered:
        return Ops()
    rates = _find_rates([file.ops for file in ordered])
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    groups: dict[OpGroup, int] = {OpGroup(): 0}
    forms: dict[OpShape, int] = {OpShape(): 0}
    sites: dict[CallSite, int] = {CallSite(): 0}
    threads: list[OpThread] = [OpThread()]
    for number, (file, rate) in enumerate(zip(ordered, rates, strict=True)):
        ops = file.ops
        size = len(ops)
        columns = dict(ops.columns)
        columns["rank"] = np.full(size, file.rank, dtype=np.int64)
        columns["log"] = np.full(size, number, dtype=np.int64)
        columns["group"] = _renumber(ops.groups, groups)[columns["group"]]
        columns["form"] = _renumber(ops.forms, forms)[columns["form"]]
        columns["site"] = _renumber(ops.sites, sites)[columns["site"]]
        # Threads of two processes are never the same.
        thread = columns["thread"]
        columns["thread"] = np.where(thread > 0, thread + len(threads) - 1, 0)
        threads += ops.threads[1:]
        columns |= {name: rate.to_wall(columns[name]) for name in TIMES}
        for name in COLUMNS:
            parts[name].append(columns[name])
    joined: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    merged = Ops(
        **joined,
        groups=tuple(groups),
        forms=_drop_sizes(tuple(forms)),
        sites=tuple(sites),
        threads=tuple(threads),
        logs=tuple(_describe(file, rate) for file, rate in zip(ordered, rates, strict=True)),
    )
    return number_ops(merged)


def choose_newest(files: Iterable[OpFile]) -> tuple[list[OpFile], list[tuple[int, str]]]:
    """Keep one op log of each rank: that of the process that lived last.

    Args:
        files: Any number for each rank; none but those that are kept is held.

    Returns:
        Those to read, and rank and artifact of those that are passed over.
    """
    kept: dict[int, OpFile] = {}
    old = []
    for file in files:
        known = kept.get(file.rank)
        if known is None or _end_ns(known) < _end_ns(file):
            kept[file.rank] = file
            old += [(known.rank, known.artifact)] if known is not None else []
        else:
            old.append((file.rank, file.artifact))
    return list(kept.values()), old


def _drop_sizes(forms: tuple[OpShape, ...]) -> tuple[OpShape, ...]:
    """Forget the sizes of ops of which some rank could not tell them.

    Beside sizes of another rank, those that are unknown would look like a mismatch.
    """
    unsized = {form.op for form in forms if form.input_bytes < 0}
    if unsized & _TRANSFERS:
        unsized |= _TRANSFERS
    return tuple(
        OpShape(op=form.op, device=form.device, root=form.root, peer=form.peer, tag=form.tag,
                input_bytes=UNKNOWN, output_bytes=UNKNOWN)
        if form.op in unsized else form
        for form in forms
    )  # fmt: skip


def _end_ns(file: OpFile) -> int:
    return file.ops.last_clock.wall_ns


def _renumber(values: Sequence[T], numbers: dict[T, int]) -> NDArray[np.int64]:
    """Give equal values of different ranks the same number; tell the new number of each."""
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


@dataclass(frozen=True)
class _Rate:
    """How the wall clock of a host follows its monotonic clock."""

    start: Clock
    drift: float
    clock: int = 0

    def to_wall(self, times: NDArray[Any]) -> Column:
        """Turn times of the monotonic clock into wall clock; 0 stays unknown."""
        passed = times - self.start.monotonic_ns
        wall = self.start.wall_ns + passed + np.rint(passed * self.drift).astype(np.int64)
        return np.where(times == 0, 0, np.clip(wall, 1, _LATEST_NS))


def _find_rates(logs: Sequence[RankOps]) -> list[_Rate]:
    """Find how to turn times into wall clock: for all processes of a host in one way.

    They share the monotonic clock, so that their times can be compared to the nanosecond.
    """
    hosts: dict[tuple[str, int], list[int]] = {}
    starts: dict[str, list[int]] = {}
    for index, log in enumerate(logs):
        offset_ns = log.last_clock.offset_ns
        known = starts.setdefault(log.about.host, [])
        near = [start for start in known if abs(start - offset_ns) < _SAME_HOST_NS]
        if not near:
            known.append(offset_ns)
        hosts.setdefault((log.about.host, (near or [offset_ns])[0]), []).append(index)
    rates = [_Rate(Clock(0, 0), 0.0)] * len(logs)
    for number, members in enumerate(hosts.values()):
        rate = replace(_find_rate([logs[index] for index in members]), clock=number)
        for index in members:
            rates[index] = rate
    return rates


def _find_rate(logs: Sequence[RankOps]) -> _Rate:
    first = min((log.first_clock for log in logs), key=lambda clock: clock.monotonic_ns)
    last = max((log.last_clock for log in logs), key=lambda clock: clock.monotonic_ns)
    passed = last.monotonic_ns - first.monotonic_ns
    drift = (last.offset_ns - first.offset_ns) / passed if passed > 0 else 0.0
    # After somebody has set the clock, what it tells now counts.
    return _Rate(first, drift) if abs(drift) < _MAX_DRIFT else _Rate(last, 0.0)


def _describe(file: OpFile, rate: _Rate) -> OpLog:
    ops, about = file.ops, file.ops.about

    def to_wall(time_ns: int) -> int:
        return int(rate.to_wall(np.array([time_ns], dtype=np.int64))[0])

    return OpLog(
        rank=file.rank,
        artifact=file.artifact,
        host=about.host,
        pid=about.pid,
        world_size=about.world_size,
        python=about.python,
        torch=about.torch,
        method=about.method,
        dropped=ops.dropped,
        torn=ops.torn,
        lost_values=ops.lost_values,
        is_recording=ops.is_recording,
        generation=ops.generation,
        step=ops.step,
        seen_ns=to_wall(ops.seen_ns),
        notes=tuple(replace(note, time_ns=to_wall(note.time_ns)) for note in ops.notes),
        clock=rate.clock,
    )
