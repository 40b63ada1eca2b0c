"""Windows of a healthy job put together anew: blocks of steps in another order, ranks exchanged.

A real run has few windows that do not overlap. Blocks of it that are drawn by seed, and follow each
other as they never did, are others with the same noise. Within a block everything stays as it was:
who was late to which op, and by how much.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.ops.log import COLUMNS, P2P, TIMES, Column, Ops
from whystuck.evidence.ops.marks import Marks
from whystuck.parse.ops.join import join_op_logs
from whystuck.parse.ops.numbers import number_ops

BLOCK, BLOCKS = 10, 4


@dataclass(frozen=True)
class _Block:
    """Some steps of the run, which come ``shift_ns`` later; rank ``i`` becomes ``ranks[i]``."""

    first: int
    shift_ns: int
    moved: int
    ranks: Sequence[int]


def draw_window(evidence: Evidence, source: random.Random, *, exchanges: bool) -> Evidence | None:
    """Put together a window.

    Args:
        evidence: The whole run.
        source: What draws.
        exchanges: Whether ranks are exchanged: they must have one role.

    Returns:
        The window, None where the run is too short.
    """
    ops = evidence.ops
    # The first block has the start of the job in it.
    count = int(ops.step.max(initial=0)) // BLOCK
    if count - 1 < BLOCKS:
        return None
    world = len(ops.logs)
    blocks, end_ns = [], 0
    for place, number in enumerate(source.sample(range(1, count), BLOCKS)):
        first = number * BLOCK
        # All ranks go on when the last op before is over.
        begin_ns = int(ops.ended_ns[ops.step < first].max())
        ranks = source.sample(range(world), world) if exchanges else range(world)
        shift_ns = end_ns - begin_ns if place else 0
        blocks.append(_Block(first, shift_ns, place * BLOCK - first, ranks))
        end_ns = int(ops.ended_ns[ops.step < first + BLOCK].max()) + shift_ns
    moved = _move_ops(ops, blocks)
    joined = join_op_logs(Collectives(), moved)
    return replace(
        evidence,
        collectives=joined.collectives,
        ops=moved,
        marks=_move_marks(evidence.marks, blocks),
        cpu=(),
    )


def _move_ops(ops: Ops, blocks: Sequence[_Block]) -> Ops:
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    for block in blocks:
        chosen = (ops.step >= block.first) & (ops.step < block.first + BLOCK)
        for name in COLUMNS:
            column = getattr(ops, name)[chosen]
            if name in TIMES:
                column = np.where(column > 0, column + block.shift_ns, column)
            parts[name].append(column)
        parts["step"][-1] = parts["step"][-1] + block.moved
        rank = np.asarray(block.ranks)[parts["rank"][-1]]
        # Each rank has one log, and issues its ops from one thread.
        parts["rank"][-1], parts["log"][-1] = rank, rank
    columns: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    order = np.lexsort((columns["enqueued_ns"], columns["rank"]))
    columns = {name: column[order] for name, column in columns.items()}
    columns["number"] = _count(columns["rank"])
    columns["thread"] = np.where(columns["thread"] > 0, columns["rank"] + 1, 0)
    kind = (columns["rank"] * len(ops.groups) + columns["group"]) * 2
    columns["seq"] = _count(kind + (columns["flags"] & P2P > 0))
    threads = (ops.threads[0], *(ops.threads[-1] for _ in ops.logs))
    logs = tuple(replace(log, dropped=0) for log in ops.logs)
    return number_ops(
        Ops(**columns, groups=ops.groups, forms=ops.forms, sites=ops.sites, threads=threads,
            logs=logs)
    )  # fmt: skip


def _count(key: Column) -> Column:
    """Count the rows of each key, from 1."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counted = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key)))) + 1
    found = np.empty(len(key), dtype=np.int64)
    found[order] = counted
    return found


def _move_marks(marks: Marks, blocks: Sequence[_Block]) -> Marks:
    names = ("rank", "log", "kind", "name", "step", "begin_ns", "end_ns")
    parts: dict[str, list[Column]] = {name: [] for name in names}
    for block in blocks:
        chosen = (marks.step >= block.first) & (marks.step < block.first + BLOCK)
        for name in names:
            column = getattr(marks, name)[chosen]
            if name in ("begin_ns", "end_ns"):
                column = np.where(column > 0, column + block.shift_ns, column)
            parts[name].append(column)
        parts["step"][-1] = parts["step"][-1] + block.moved
        rank = np.asarray(block.ranks)[parts["rank"][-1]]
        parts["rank"][-1], parts["log"][-1] = rank, rank
    columns: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    order = np.lexsort((columns["begin_ns"], columns["rank"]))
    return replace(marks, **{name: column[order] for name, column in columns.items()})
