"""Op logs of many ranks to one table, with times of the wall clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
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
from whystuck.parse.ops.clocks import Rate, Rates
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.log import RankOps
from whystuck.parse.ops.numbers import number_ops

T = TypeVar("T", bound=Hashable)

_TRANSFERS = {"send", "recv", "recv_any"}


def merge_op_logs(files: Iterable[LogFile[RankOps]], rates: Rates | None = None) -> Ops:
    """Join the op logs of all ranks.

    Args:
        files: At most one for each rank.
        rates: The clocks of all logs, where there are more than these.

    Returns:
        One table, sorted by rank, then by order of issue; times are wall clock.
    """
    ordered = sorted(files, key=lambda file: file.rank)
    if not ordered:
        return Ops()
    known = rates or Rates([file.log for file in ordered])
    rates_of_files = [known.find(file.log) for file in ordered]
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    groups: dict[OpGroup, int] = {OpGroup(): 0}
    forms: dict[OpShape, int] = {OpShape(): 0}
    sites: dict[CallSite, int] = {CallSite(): 0}
    threads: list[OpThread] = [OpThread()]
    for number, (file, rate) in enumerate(zip(ordered, rates_of_files, strict=True)):
        ops = file.log
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
        logs=tuple(
            _describe(file, rate) for file, rate in zip(ordered, rates_of_files, strict=True)
        ),
    )
    return number_ops(merged)


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


def _renumber(values: Sequence[T], numbers: dict[T, int]) -> NDArray[np.int64]:
    """Give equal values of different ranks the same number; tell the new number of each."""
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _describe(file: LogFile[RankOps], rate: Rate) -> OpLog:
    ops, about = file.log, file.log.about

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
        seen_ns=rate.to_wall_one(ops.seen_ns),
        notes=tuple(replace(note, time_ns=rate.to_wall_one(note.time_ns)) for note in ops.notes),
        clock=rate.clock,
        network=about.network,
        interface=about.interface,
    )
