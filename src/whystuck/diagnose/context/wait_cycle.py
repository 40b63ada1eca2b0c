"""Ranks that wait for each other in a cycle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait, find_cycle, find_knot
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.reach import find_parting
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.algorithms.transfers.pairs import find_peer
from whystuck.diagnose.context.divergences import Divergences
from whystuck.diagnose.context.facts.movement import Movement
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.ranks import Ranks
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Confidence
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame


@dataclass(frozen=True, eq=False, repr=False)
class WaitCycle:
    """The cycle of waits that keeps a job, if there is one."""

    evidence: Evidence
    ops: Ops
    ranks: Ranks
    waits: Waits
    movement: Movement
    divergences: Divergences

    @cached_property
    def edges(self) -> tuple[Wait, ...]:
        """Waits of ranks that wait for each other in a ring, in order; none while suspects are.

        Of the ops that a rank waits in, the one that the next rank of the ring has not come to.
        """
        parted = self.divergences
        if not self.movement.is_hung or parted.first or self.waits.suspects:
            return ()
        if parted.missed_half is not None or parted.split_mismatch is not None:
            return ()
        if parted.odd_transfers or parted.strays:
            return ()
        ranks = find_cycle(self.waits.targets_by_rank)
        following = dict(zip(ranks, (*ranks[1:], *ranks[:1]), strict=True))
        found = {
            wait.rank: wait
            for wait in reversed(self.waits.pending)
            if following.get(wait.rank) in wait.targets
        }
        return tuple(found[rank] for rank in ranks) if set(found) == set(ranks) else ()

    @property
    def confidence(self) -> Confidence:
        """How sure the ring is: ops that wait in a device's queue may yet run side by side."""
        following = (*self.edges[1:], *self.edges[:1])
        is_hard = all(
            other.rank in wait.missing for wait, other in zip(self.edges, following, strict=True)
        )
        is_odd = any(
            self.has_gone_well(wait) or self.divergences.starts_oddly(wait) for wait in self.edges
        )
        # Of a transfer that only waits in a queue, the half before it may be the one that lacks.
        is_queued = not is_hard and all(wait.is_p2p for wait in self.edges)
        if self.divergences.lapse is None and (is_odd or is_queued):
            return Confidence.POSSIBLE
        if self.strangers:
            return Confidence.POSSIBLE
        # A member that nobody knows of may be the one that left the order.
        if any(not self.ranks.unknown.isdisjoint(wait.group.members) for wait in self.edges):
            return Confidence.POSSIBLE
        is_sure = is_hard and all(wait.is_sure for wait in self.edges)
        if is_sure and self._shows_orders:
            return Confidence.CERTAIN
        is_open = not (self.ops.device_ranks or self._shows_orders or self._may_be_reordered)
        return Confidence.POSSIBLE if is_open else Confidence.LIKELY

    @cached_property
    def strangers(self) -> tuple[tuple[int, int], ...]:
        """Ranks of a ring of transfers, each with one it waits for that made some, none with it.

        One of the two has a wrong list of peers, and the ring may be what came of it.
        """
        found = []
        for wait, other in zip(self.edges, (*self.edges[1:], *self.edges[:1]), strict=True):
            rows = wait.group.p2p_by_rank.get(other.rank)
            if rows is None or not wait.is_p2p or not self.ops.table.done[rows].any():
                continue
            forms = [self.ops.table.forms[one] for one in np.unique(self.ops.table.form[rows])]
            peers = {find_peer(wait.group, one.op, one.source, one.target) for one in forms}
            if wait.rank not in peers and None not in peers:
                found.append((wait.rank, other.rank))
        return tuple(found)

    @cached_property
    def _sites(self) -> list[tuple[tuple[Frame, ...], tuple[Frame, ...]]]:
        """The user's frames of each wait of the ring, with those of the next one."""
        sites = [select_user_frames(self.ops.get_wait_site(wait)) for wait in self.edges]
        return list(zip(sites, (*sites[1:], *sites[:1]), strict=True))

    @cached_property
    def _shows_orders(self) -> bool:
        """Whether both orders of a ring are known: from calls before, or from two branches.

        Else a rank that left out a call, or made one more, may wait in the same ring.
        """
        if all(wait.is_p2p for wait in self.edges):
            return True
        lapse = self.divergences.lapse
        if lapse is not None and lapse.way is None and lapse.is_clear:
            return True
        sources = self.evidence.sources
        return any(
            relate_sites(one, other, sources) is Relation.EXCLUSIVE for one, other in self._sites
        )

    @property
    def _may_be_reordered(self) -> bool:
        """Whether ranks of a ring are in one line, or called from one, that goes through groups."""
        lapse = self.divergences.lapse
        if lapse is not None and lapse.way is None:
            return True
        return any(
            bool(one and other) and find_parting(one, other) is None for one, other in self._sites
        )

    def has_gone_well(self, wait: Wait) -> bool:
        """Tell whether a call on a device went well before, so that its order alone is no reason.

        A ring that lost its oldest ops, or holds active ones only, may hide that.
        """
        if wait.rank not in self.ops.device_ranks or wait.row == NO_ROW:
            return False
        table, own = self.ops.table, slice_rank(self.ops.table, wait.rank)
        is_whole = any(not dump.first_record for dump in table.dumps if dump.rank == wait.rank)
        same = (table.form[own] == table.form[wait.row]) & (table.site[own] == table.site[wait.row])
        return not is_whole or bool((same & table.done[own]).any())

    @cached_property
    def all_waits(self) -> tuple[Wait, ...]:
        """The waits of all ranks that are in a ring with those of :attr:`ring`."""
        if not self.edges:
            return ()
        ranks = find_knot(self.edges[0].rank, self.waits.targets_by_rank)
        return tuple(
            wait
            for wait in self.waits.pending
            if wait.rank in ranks and not ranks.isdisjoint(wait.targets)
        )
