"""The calls of all ranks, matched."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.collectives.ops import MEETING_OPS
from whystuck.tracing.collectives.rank_calls import Kind, RankCalls, Real, Whole


@dataclass(frozen=True)
class GroupCalls:
    """The collectives of a process group, as far as ranks could be matched.

    ``rank`` are positions in `Matching.ranks`, of those that took part. ``rows`` has a row for
    each of them and a column a collective: the position of its call, -1 when it has none there.
    ``size`` is the number of members, of which some may have left no trace; -1 when unknown.
    ``is_assumed`` tells that no trace names the group: all ranks are taken for its members.
    """

    name: str
    desc: str
    members: tuple[int, ...]
    size: int
    rank: NDArray[np.int64]
    rows: NDArray[np.int32]
    kind: NDArray[np.int64]
    sequence: Whole
    is_assumed: bool = False


@dataclass
class Matching:
    """The calls of all ranks, matched. ``gaps`` count what could not be: rank, group, reason.

    Times count from ``zero_ns``.
    """

    ranks: list[RankCalls] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    groups: list[GroupCalls] = field(default_factory=list)
    gaps: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    zero_ns: int = 0

    def gather(self, group: GroupCalls, name: str, columns: Whole | None = None) -> Real:
        """Return a column of the calls of a group, ranks by collectives; NaN where absent.

        ``columns`` are the collectives that are wanted, all when left out.
        """
        rows = group.rows if columns is None else group.rows[:, columns]
        out = np.empty(rows.shape, dtype=np.float64)
        for place, rank in enumerate(group.rank.tolist()):
            out[place] = self.ranks[rank].take(name, rows[place])
        if (rows < 0).any():
            out[rows < 0] = np.nan
        return out

    def meets(self, group: GroupCalls) -> NDArray[np.bool_]:
        """Tell the collectives of a group in which each member waits for all others."""
        is_meeting = np.array([kind.op in MEETING_OPS for kind in self.kinds], dtype=np.bool_)
        meets: NDArray[np.bool_] = is_meeting[group.kind] if len(group.kind) else np.empty(0, bool)
        return meets
