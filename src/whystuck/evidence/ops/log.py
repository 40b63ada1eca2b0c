"""The ops that ranks wrote to their op logs: collectives, sends, receives and barriers, with times.

A flight recorder keeps fewer of them and other facts; `docs/op-log.md` describes the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import CallSite

Column = NDArray[np.int64]
BoolColumn = NDArray[np.bool_]

ASYNC, P2P, ISSUE_FAILED, FAILED, NO_END, HOST = 1, 2, 4, 8, 16, 32
UNKNOWN = -1


def _no_rows() -> Column:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class OpGroup:
    """A process group as one rank knew it.

    ``ranks`` are its members in the order of the group, which roots and peers count by. ``base`` is
    the number of ops before the first one recorded, -1 when unknown; ``generation`` and
    ``step`` are those of the switch and of training when the rank first used the group. ``life``
    counts the groups of one name and one set of members that a rank has had, from 0.
    """

    name: str = ""
    desc: str = ""
    ranks: tuple[int, ...] = ()
    backend: str = ""
    base: int = UNKNOWN
    generation: int = 0
    step: int = 0
    life: int = 0


@dataclass(frozen=True)
class OpTeam:
    """A process group of all its ranks, in one life of it: ``members`` are sorted.

    ``base`` is the smallest of its ranks, -1 when one does not know it, ``step`` the largest.
    """

    name: str
    members: tuple[int, ...]
    generation: int
    life: int
    desc: str = ""
    backend: str = ""
    base: int = UNKNOWN
    step: int = 0


@dataclass(frozen=True)
class OpShape:
    """What an op worked on. Roots and peers are positions in the ranks of the group.

    ``root`` and ``peer`` are -1 where the op has none, or takes any. Splits are empty where the op
    has none, or splits evenly. Sizes in bytes are those of all tensors of this rank, -1 where the
    rank had no room left to tell sizes.
    """

    op: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    device: str = ""
    root: int = UNKNOWN
    peer: int = UNKNOWN
    tag: int = 0
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpThread:
    """A thread of the job that issued ops; ``native_id`` is that of the kernel."""

    name: str = ""
    native_id: int = 0


@dataclass(frozen=True)
class OpNote:
    """Recording was switched on or off; ``time_ns`` is the wall clock."""

    what: str
    step: int = 0
    generation: int = 0
    time_ns: int = 0


@dataclass(frozen=True)
class OpLog:
    """One file that was read: whose it is, and what it lost.

    ``dropped`` records were written over by newer ones, ``torn`` ones were being written or are
    damaged, ``lost_values`` did not fit or could not be read. ``seen_ns`` is the wall clock of the
    last look of the rank at what is pending, ``step`` the optimizer steps made by then. Logs of one
    ``clock`` have times that can be compared as they stand. ``network`` is the network namespace,
    ``interface`` what the environment names for talks between ranks; empty where not known.
    """

    rank: int
    artifact: str
    host: str = ""
    pid: int = 0
    world_size: int = 0
    python: str = ""
    torch: str = ""
    method: str = ""
    dropped: int = 0
    torn: int = 0
    lost_values: int = 0
    is_recording: bool = False
    generation: int = 0
    step: int = 0
    seen_ns: int = 0
    notes: tuple[OpNote, ...] = ()
    clock: int = 0
    network: str = ""
    interface: str = ""


@dataclass(frozen=True)
class Ops:
    """Ops of all ranks, sorted by rank, then by the order in which the rank issued them.

    Columns have one value a row. ``log``, ``group``, ``form``, ``site`` and ``thread`` index the
    tuples ``logs``, ``groups``, ``forms``, ``sites`` and ``threads``, whose first value (but that
    of ``logs``) is the unknown one. ``number`` is that of the record in its file, ``seq`` that of
    the op in its group, collectives and point-to-point ops counted apart, and ``step`` the number
    of optimizer steps made before. ``team`` indexes ``teams``, -1 when the group is not known, and
    ``place`` is the number of the op there, the same on all ranks, from 1; -1 when the op cannot be
    compared with those of other ranks. ``flags`` are the constants of this module. ``source`` is
    the position in the group whose message a receive from any rank got, -1 when unknown.

    Times are wall clock in ns, 0 when unknown; ranks of one host have one clock. The op was issued
    at ``enqueued_ns``, the call came back at ``returned_ns``, the device began at ``started_ns``;
    the end lies between ``pending_ns`` (else ``enqueued_ns``) and ``done_ns``, which is 0 while
    the op is not over. ``ended_ns`` is when it was over at the latest: a thread that waits for an
    op was past it when it issued the next one.
    """

    rank: Column = field(default_factory=_no_rows)
    log: Column = field(default_factory=_no_rows)
    number: Column = field(default_factory=_no_rows)
    group: Column = field(default_factory=_no_rows)
    seq: Column = field(default_factory=_no_rows)
    form: Column = field(default_factory=_no_rows)
    site: Column = field(default_factory=_no_rows)
    thread: Column = field(default_factory=_no_rows)
    step: Column = field(default_factory=_no_rows)
    flags: Column = field(default_factory=_no_rows)
    source: Column = field(default_factory=_no_rows)
    team: Column = field(default_factory=_no_rows)
    place: Column = field(default_factory=_no_rows)
    enqueued_ns: Column = field(default_factory=_no_rows)
    returned_ns: Column = field(default_factory=_no_rows)
    started_ns: Column = field(default_factory=_no_rows)
    pending_ns: Column = field(default_factory=_no_rows)
    done_ns: Column = field(default_factory=_no_rows)
    ended_ns: Column = field(default_factory=_no_rows)
    groups: tuple[OpGroup, ...] = (OpGroup(),)
    forms: tuple[OpShape, ...] = (OpShape(),)
    sites: tuple[CallSite, ...] = (CallSite(),)
    threads: tuple[OpThread, ...] = (OpThread(),)
    logs: tuple[OpLog, ...] = ()
    teams: tuple[OpTeam, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)


COLUMNS = (
    "rank", "log", "number", "group", "seq", "form", "site", "thread", "step", "flags", "source",
    "enqueued_ns", "returned_ns", "started_ns", "pending_ns", "done_ns",
)  # fmt: skip
TIMES = ("enqueued_ns", "returned_ns", "started_ns", "pending_ns", "done_ns")


def slice_logs(ops: Ops) -> list[slice]:
    """Return the rows of each log, which lie together."""
    bounds = np.searchsorted(ops.log, np.arange(len(ops.logs) + 1)).tolist()
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def number_columns(*columns: Column) -> tuple[Column, Column]:
    """Number rows that are alike in all columns.

    Args:
        columns: Columns of one length.

    Returns:
        The first row of each number, and the number of each row.
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        # Small numbers again before the next column, so that they do not grow beyond all bounds.
        _, code = np.unique(code, return_inverse=True)
        _, value = np.unique(column, return_inverse=True)
        code = code * (int(value.max(initial=0)) + 1) + value
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse
