"""The table of collectives: one row for each op that one rank recorded, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntColumn = NDArray[np.int64]
BoolColumn = NDArray[np.bool_]


@dataclass(frozen=True)
class Frame:
    """One Python frame: ``function`` at ``file:line``."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class CallSite:
    """The Python stack that issued an op, innermost frame first; empty when not recorded."""

    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class OpForm:
    """What an op looks like on the wire: two ranks that meet must agree on this."""

    op: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupName:
    """A process group as the recorder names it: name and description.

    ``members`` are its ranks, sorted, where known: two groups of one name are different groups
    when their members differ.
    """

    name: str
    desc: str = ""
    members: tuple[int, ...] = ()


def _no_ints() -> IntColumn:
    return np.empty(0, dtype=np.int64)


def _no_bools() -> BoolColumn:
    return np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class Collectives:
    """Ops of all ranks, sorted by (rank, order in which the rank issued them).

    Columns have one value a row. ``group``, ``form`` and ``site`` index the tuples of the same
    plural name. ``done`` is true when the op is known to be over (retired or completed);
    ``created_ns`` is the host's wall clock. ``artifact`` indexes ``artifacts`` and ``row`` is
    the position inside that file, so that every row can be cited.
    """

    rank: IntColumn = field(default_factory=_no_ints)
    group: IntColumn = field(default_factory=_no_ints)
    seq: IntColumn = field(default_factory=_no_ints)
    form: IntColumn = field(default_factory=_no_ints)
    site: IntColumn = field(default_factory=_no_ints)
    created_ns: IntColumn = field(default_factory=_no_ints)
    timeout_ms: IntColumn = field(default_factory=_no_ints)
    artifact: IntColumn = field(default_factory=_no_ints)
    row: IntColumn = field(default_factory=_no_ints)
    is_p2p: BoolColumn = field(default_factory=_no_bools)
    started: BoolColumn = field(default_factory=_no_bools)
    done: BoolColumn = field(default_factory=_no_bools)
    groups: tuple[GroupName, ...] = ()
    forms: tuple[OpForm, ...] = ()
    sites: tuple[CallSite, ...] = ()
    artifacts: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)
