"""The table of collectives: one row for each op that one rank recorded, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.call_records import Frame as Frame  # noqa: PLC0414 - of call sites

# 64 bits wide, but `site`, `timeout_ms`, `artifact` and `row` of large tables: 32.
IntColumn = NDArray[np.signedinteger[Any]]
BoolColumn = NDArray[np.bool_]


def _no_ints() -> IntColumn:
    return np.empty(0, dtype=np.int64)


def _no_bools() -> BoolColumn:
    return np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class CallSite:
    """The Python stack that issued an op, innermost frame first; empty when not recorded."""

    frames: tuple[Frame, ...] = ()


NO_PEER = -1
UNKNOWN_OP = "an op that is not known"
"""An op of which the rank had no room left to tell anything; it may be any other."""


@dataclass(frozen=True)
class OpForm:
    """What an op looks like on the wire: two ranks that meet must agree on this.

    ``source`` and ``target`` are the two ends of a point-to-point op as positions in the sorted
    members of its group, ``NO_PEER`` where they are not recorded. ``backend`` is the prefix of
    the recorded name, e.g. ``nccl``. ``tag`` tells apart the messages of one pair, where the
    backend heeds it. ``root`` is the rank that an op comes from or goes to, ``NO_PEER`` where it
    is not recorded.
    """

    op: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    source: int = NO_PEER
    target: int = NO_PEER
    backend: str = ""
    tag: int = 0
    root: int = NO_PEER

    @property
    def label(self) -> str:
        """The name to print, e.g. ``all_reduce`` or ``send 0->3``."""
        if NO_PEER in (self.source, self.target):
            return self.op
        tag = f" tag {self.tag}" if self.tag else ""
        if self.op == "recv":
            return f"recv {self.target}<-{self.source}{tag}"
        return f"{self.op} {self.source}->{self.target}{tag}"


@dataclass(frozen=True)
class GroupName:
    """A process group as the recorder names it: name and description.

    ``members`` are its ranks, sorted, where known: two groups of one name are different groups
    when their members differ.
    """

    name: str
    desc: str = ""
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class DumpInfo:
    """One file that was read: a rank that has a dump may still have no op in it.

    ``first_record`` is the number of its first entry: above 0, the ring has lost older ones.
    ``version`` is that of the format, ``modified_ns`` when the file was last written, 0 when
    unknown. ``is_op_log`` tells an op log from a dump of a flight recorder.
    """

    rank: int
    artifact: str
    version: str = ""
    first_record: int = 0
    modified_ns: int = 0
    is_op_log: bool = False


@dataclass(frozen=True)
class Statuses:
    """How far each rank came in each group, as the recorder's own counters tell.

    One value a row; ``group`` indexes ``Collectives.groups``. A counter of a group that is used
    for point-to-point ops too may count those instead. ``completed`` may lag behind on gloo.
    """

    rank: IntColumn = field(default_factory=_no_ints)
    group: IntColumn = field(default_factory=_no_ints)
    enqueued: IntColumn = field(default_factory=_no_ints)
    started: IntColumn = field(default_factory=_no_ints)
    completed: IntColumn = field(default_factory=_no_ints)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)


@dataclass(frozen=True)
class Collectives:
    """Ops of all ranks, sorted by (rank, order in which the rank issued them).

    Columns have one value a row. ``group``, ``form`` and ``site`` index the tuples of the same
    plural name. ``seq`` counts collectives, or point-to-point ops where ``is_p2p``. ``done`` is
    true when the op is known to be over (retired or completed). ``created_ns`` (when the op was
    issued) is the host's wall clock, as are ``started_ns`` and ``completed_ns`` (when a watchdog
    noticed), 0 when unknown. ``artifact`` indexes ``artifacts`` and ``dumps``, and ``row`` is the
    position inside that file, so that every row can be cited; in an op log it is the number of the
    record. ``behind`` is true for a pending op whose thread is known to be blocked in a later one;
    it is empty when nothing tells. ``unseen`` is true for an op that counts as done although nobody
    saw its end, ``is_async`` for one whose call waits for nobody, ``step`` counts the optimizer
    steps made before, -1 when unknown; all three are empty where only recorders tell.
    """

    rank: IntColumn = field(default_factory=_no_ints)
    group: IntColumn = field(default_factory=_no_ints)
    seq: IntColumn = field(default_factory=_no_ints)
    form: IntColumn = field(default_factory=_no_ints)
    site: IntColumn = field(default_factory=_no_ints)
    created_ns: IntColumn = field(default_factory=_no_ints)
    started_ns: IntColumn = field(default_factory=_no_ints)
    completed_ns: IntColumn = field(default_factory=_no_ints)
    timeout_ms: IntColumn = field(default_factory=_no_ints)
    artifact: IntColumn = field(default_factory=_no_ints)
    row: IntColumn = field(default_factory=_no_ints)
    is_p2p: BoolColumn = field(default_factory=_no_bools)
    started: BoolColumn = field(default_factory=_no_bools)
    done: BoolColumn = field(default_factory=_no_bools)
    behind: BoolColumn = field(default_factory=_no_bools)
    unseen: BoolColumn = field(default_factory=_no_bools)
    is_async: BoolColumn = field(default_factory=_no_bools)
    step: IntColumn = field(default_factory=_no_ints)
    groups: tuple[GroupName, ...] = ()
    forms: tuple[OpForm, ...] = ()
    sites: tuple[CallSite, ...] = ()
    artifacts: tuple[str, ...] = ()
    dumps: tuple[DumpInfo, ...] = ()
    statuses: Statuses = field(default_factory=Statuses)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)
