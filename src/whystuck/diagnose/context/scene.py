"""What rules judge: the facts, the divergences of groups, and what keeps each suspect."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import Clash, align
from whystuck.diagnose.algorithms.ops.call_patterns import (
    Habit,
    has_many_recorders,
    learn_habits,
    list_lapses,
)
from whystuck.diagnose.algorithms.ops.divergence import Divergence, find_divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import Way
from whystuck.diagnose.algorithms.ops.groups import is_active_only
from whystuck.diagnose.algorithms.ops.pattern_breaks import Parted, compare_lapses, make_divergence
from whystuck.diagnose.algorithms.ops.programs import compare_programs
from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.diagnose.algorithms.ops.splits import SplitMismatch, find_split_mismatch
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait, find_cycle, find_knot
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.reach import find_parting
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.algorithms.transfers.odd_transfers import OddTransfer
from whystuck.diagnose.algorithms.transfers.peers import Stray
from whystuck.diagnose.context.departed import find_departed, find_strayed, list_missed
from whystuck.diagnose.context.ends import Ends
from whystuck.diagnose.context.losses import Losses, find_losses, is_lost_work
from whystuck.diagnose.context.parting import find_stack_parting
from whystuck.diagnose.context.short_limit import ShortLimit, find_short_limit
from whystuck.diagnose.context.stack_sides import Parting
from whystuck.diagnose.context.step_pace import Pace
from whystuck.diagnose.context.suspects.explanations import (
    explain_alone,
    explain_hard,
    explain_soft,
)
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame

_SIGTERM = 15


class Scene(Ends):
    """The shared analysis of one evidence. Everything is computed on first use."""

    @cached_property
    def divergence(self) -> Divergence | None:
        """The earliest divergence of a group, those with clashing forms first."""
        if self.odd_transfers:
            return None
        found = self._find_divergence()
        is_open = (
            found.is_even and (found.is_tied or self.lapse is None) if found else not self.lapse
        )
        if is_open:
            # Of two sides of one size, ranks of other groups that run the same program may tell.
            whole = self._parted_programs
            if whole is not None and (found is None or not whole.is_even):
                return whole
        return found

    def _find_divergence(self) -> Divergence | None:
        """Find where the calls of a group part, side by side or against the habits of ranks."""
        first = min(self._diverged, key=self._order, default=None) if self.is_stalled else None
        if self.lapse is None or (self.lapse.way is None and not self.has_ring):
            return first
        lapse = make_divergence(self.table, self.lapse, self._lapses)
        if first is not None and lapse is not None and self.get_site(self.lapse.row):
            # Call sites tell more of what a rank did, as long as they name the same ranks.
            if set(first.culprits) == set(lapse.culprits):
                # Another op in the place of a known call, which itself is known, is a skip.
                is_skip = first.by_form and first.way is Way.OP and lapse.way is Way.SKIPPED
                return lapse if is_skip else first
            if self.device_ranks or first.is_tied:
                return lapse
            return self._choose_older(first, lapse)
        return lapse

    def _choose_older(self, first: Divergence, lapse: Divergence) -> Divergence:
        """Return the divergence that came first, of two in different groups.

        A host waits in each op: what was left out or added on one group brings others out of step.
        """
        created_ns = self.table.created_ns
        firsts, lapses = (
            min(int(created_ns[row]) for row in one.rows.values()) for one in (first, lapse)
        )
        return lapse if lapses < firsts else first

    @cached_property
    def _diverged(self) -> list[Divergence]:
        """The divergence of each group, by itself."""
        found = []
        for group in self.groups:
            if len(group.rows_by_rank) > 1:
                divergence = find_divergence(align(self.table, group), self.evidence.sources)
                if divergence is not None:
                    found.append(divergence)
        if self.is_crash:
            # Ranks that are torn down stop anywhere: only what was on the wire counts.
            found = [item for item in found if item.clash in self._wire_clashes]
        return found

    @property
    def lapse(self) -> Parted | None:
        """The first break of habit that peers did not share.

        What a rank waits in is often not what it did wrong: with several groups it is stuck in
        another one, and hosts of devices run ahead.
        """
        return self._lapses[0] if self._lapses else None

    @cached_property
    def _lapses(self) -> list[Parted]:
        table = self.table
        if self.is_crash or not self.is_stalled or is_active_only(table):
            return []
        if not self.waits or has_many_recorders(table):
            return []
        if not self.device_ranks and self.suspects - set(self.in_flight):
            # A host is in one op at a time: who is in none explains more than what it did before.
            return []
        lapses = list_lapses(table, self._habits, self.evidence.sources)
        found = compare_lapses(table, self.groups, self._habits, lapses)
        # Sends and receives of hosts are judged by the ends of their logs.
        return [one for one in found if self.device_ranks or not one.is_transfer]

    @cached_property
    def _parted_programs(self) -> Divergence | None:
        """Where ranks of one program part that have no habit yet."""
        if self.is_crash or not self.is_stalled or self.device_ranks:
            return None
        if self.suspects - set(self.in_flight) or has_many_recorders(self.table):
            return None
        if not self.waits or any(wait.is_p2p for wait in self.waits):
            # Sends and receives differ by rank, and one of them may be what went wrong.
            return None
        return compare_programs(self.table, self.groups, self.evidence.sources)

    @cached_property
    def _habits(self) -> dict[int, Habit]:
        return learn_habits(self.table)

    def _starts_oddly(self, wait: Wait) -> bool:
        """Tell whether the first calls of a rank are not those that its queue shows to follow."""
        habit = self._habits.get(wait.rank) if wait.rank in self.device_ranks else None
        return habit is not None and not habit.is_even

    @cached_property
    def missed_half(self) -> Parted | None:
        """A transfer of which a rank left out its half, against its habit."""
        lapse = self.lapse
        return lapse if lapse is not None and lapse.is_transfer else None

    @cached_property
    def odd_transfers(self) -> tuple[OddTransfer, ...]:
        """Sends and receives that have no partner as a rank departed from its habit."""
        return find_departed(self, lambda: self._habits) if self._may_depart else ()

    @cached_property
    def strays(self) -> tuple[Stray, ...]:
        """The same of ranks without a log of their ops, by the counts of their probes."""
        return find_strayed(self) if self._may_depart and not self.odd_transfers else ()

    @property
    def _may_depart(self) -> bool:
        """Whether neither call sites nor forms of collectives show that ranks parted."""
        is_parted = bool(self._diverged) or self.split_mismatch is not None
        return self.is_stalled and not self.is_crash and not is_parted

    @cached_property
    def has_ring(self) -> bool:
        """Whether ranks wait for each other in a ring."""
        return not self.suspects and bool(find_cycle(self.targets_by_rank))

    @cached_property
    def split_mismatch(self) -> SplitMismatch | None:
        """Two ranks that do not agree on what one of them sends the other in all_to_all."""
        return find_split_mismatch(self.evidence.ops) if self.is_stalled else None

    def _order(self, divergence: Divergence) -> tuple[bool, int]:
        table = self.table
        rows = divergence.hard_rows.values()
        return divergence.clash == Clash.ABSENT, min(int(table.created_ns[row]) for row in rows)

    @cached_property
    def suspicions(self) -> tuple[Suspicion, ...]:
        """What keeps each suspect; only the strongest kind of explanation is kept."""
        if not self.is_stalled or self.is_crash or self.split_mismatch is not None:
            return ()
        is_clash = self.divergence is not None and self.divergence.clash != Clash.ABSENT
        if is_clash or self.missed_half is not None or self.parting is not None:
            return ()
        hard = [item for rank in sorted(self._accused) if (item := explain_hard(self, rank))]
        if hard:
            return tuple(hard)
        if self.divergence is not None or self.short_limit is not None:
            return ()
        soft = [item for item in self._elsewhere if not self._is_unmatched(item)]
        if soft or self.waiting:
            # A rank that evidence shows elsewhere explains more than one nobody knows of.
            return tuple([item for item in soft if item.rank in self.seen_ranks] or soft)
        # Nobody waits, and yet nothing moves: all may be in the compiler, or at a silent mount.
        found = [item for rank in sorted(self.ranks) if (item := explain_alone(self, rank))]
        return tuple(found)

    @cached_property
    def parting(self) -> Parting | None:
        """Where ranks part whose ops nobody recorded, all of which wait."""
        return None if self.is_crash else find_stack_parting(self)

    @cached_property
    def short_limit(self) -> ShortLimit | None:
        """A time limit that ended an op which was only slow."""
        return find_short_limit(self) if self.timed_out and not self.divergence else None

    @cached_property
    def losses(self) -> Losses:
        """Collectives that ranks called and torch never issued, and whom they keep waiting."""
        raised = {rank for rank, item in self.root_exceptions.items() if not is_lost_work(item)}
        # A rank that failed for a reason of its own explains more than what was lost before.
        ended = set(self.killed_ranks) | set(self.crash_signals)
        return find_losses(self, has_other_cause=bool(self.is_crash and (raised or ended)))

    @cached_property
    def pace(self) -> Pace:
        """How ranks keep step in a job that goes on: who is late, and who waits."""
        return Pace(self)

    @cached_property
    def ring(self) -> tuple[Wait, ...]:
        """Waits of ranks that wait for each other in a ring, in order; none while suspects are.

        Of the ops that a rank waits in, the one that the next rank of the ring has not come to.
        """
        if self.is_crash or not self.is_stalled or self.divergence or self.suspects:
            return ()
        if self.missed_half is not None or self.split_mismatch is not None:
            return ()
        if self.odd_transfers or self.strays:
            return ()
        ranks = find_cycle(self.targets_by_rank)
        following = dict(zip(ranks, (*ranks[1:], *ranks[:1]), strict=True))
        found = {
            wait.rank: wait
            for wait in reversed(self.waits)
            if following.get(wait.rank) in wait.targets
        }
        return tuple(found[rank] for rank in ranks) if set(found) == set(ranks) else ()

    @property
    def ring_confidence(self) -> Confidence:
        """How sure the ring is: ops that wait in a device's queue may yet run side by side."""
        following = (*self.ring[1:], *self.ring[:1])
        is_hard = all(
            other.rank in wait.missing for wait, other in zip(self.ring, following, strict=True)
        )
        is_odd = any(self.has_gone_well(wait) or self._starts_oddly(wait) for wait in self.ring)
        # Of a transfer that only waits in a queue, the half before it may be the one that lacks.
        is_queued = not is_hard and all(wait.is_p2p for wait in self.ring)
        if self.lapse is None and (is_odd or is_queued):
            return Confidence.POSSIBLE
        # A member that nobody knows of may be the one that left the order.
        if any(not self.unknown_ranks.isdisjoint(wait.group.members) for wait in self.ring):
            return Confidence.POSSIBLE
        is_sure = is_hard and all(wait.is_sure for wait in self.ring)
        if is_sure and self._shows_orders:
            return Confidence.CERTAIN
        is_open = not (self.device_ranks or self._shows_orders or self._may_be_reordered)
        return Confidence.POSSIBLE if is_open else Confidence.LIKELY

    @cached_property
    def _ring_sites(self) -> list[tuple[tuple[Frame, ...], tuple[Frame, ...]]]:
        """The user's frames of each wait of the ring, with those of the next one."""
        sites = [select_user_frames(self.get_wait_site(wait)) for wait in self.ring]
        return list(zip(sites, (*sites[1:], *sites[:1]), strict=True))

    @cached_property
    def _shows_orders(self) -> bool:
        """Whether both orders of a ring are known: from calls before, or from two branches.

        Else a rank that left out a call, or made one more, may wait in the same ring.
        """
        if all(wait.is_p2p for wait in self.ring):
            return True
        if self.lapse is not None and self.lapse.way is None and self.lapse.is_clear:
            return True
        sources = self.evidence.sources
        return any(
            relate_sites(one, other, sources) is Relation.EXCLUSIVE
            for one, other in self._ring_sites
        )

    @property
    def _may_be_reordered(self) -> bool:
        """Whether ranks of a ring are in one line, or called from one, that goes through groups."""
        if self.lapse is not None and self.lapse.way is None:
            return True
        return any(
            bool(one and other) and find_parting(one, other) is None
            for one, other in self._ring_sites
        )

    def has_gone_well(self, wait: Wait) -> bool:
        """Tell whether a call on a device went well before, so that its order alone is no reason.

        A ring that lost its oldest ops, or holds active ones only, may hide that.
        """
        if wait.rank not in self.device_ranks or wait.row == NO_ROW:
            return False
        table, own = self.table, slice_rank(self.table, wait.rank)
        is_whole = any(not dump.first_record for dump in table.dumps if dump.rank == wait.rank)
        same = (table.form[own] == table.form[wait.row]) & (table.site[own] == table.site[wait.row])
        return not is_whole or bool((same & table.done[own]).any())

    @cached_property
    def knot(self) -> tuple[Wait, ...]:
        """The waits of all ranks that are in a ring with those of :attr:`ring`."""
        if not self.ring:
            return ()
        ranks = find_knot(self.ring[0].rank, self.targets_by_rank)
        return tuple(
            wait for wait in self.waits if wait.rank in ranks and not ranks.isdisjoint(wait.targets)
        )

    @cached_property
    def unmatched(self) -> tuple[Wait, ...]:
        """Point-to-point ops whose peer has not posted the other half and waits elsewhere."""
        if self.is_crash or not self.is_stalled or self.divergence:
            return ()
        if self.split_mismatch is not None:
            return ()
        if self.odd_transfers or self.strays:
            return ()
        if self.missed_half is not None:
            return list_missed(self.table, self.missed_half)
        if self.ring:
            is_mixed = not all(wait.is_p2p for wait in self.ring)
            pairs = [wait for wait in self.ring if wait.is_p2p and wait.missing]
            return tuple(pairs) if is_mixed else ()
        elsewhere = {item.rank for item in self._elsewhere if self._is_unmatched(item)}
        # Nobody is missing from what these are in: they post the other half once it is over.
        silent = self.suspects & self.waiting - set(self.in_flight)
        return tuple(
            wait
            for wait in self.waits
            if wait.is_p2p and wait.missing and wait.missing <= silent | elsewhere
        )

    @cached_property
    def _elsewhere(self) -> tuple[Suspicion, ...]:
        """Where suspects are that are in no op of their own."""
        ranks = sorted(self.suspects - set(self.in_flight))
        return tuple(item for rank in ranks if (item := explain_soft(self, rank)))

    def _is_unmatched(self, item: Suspicion) -> bool:
        """Return whether a rank that is merely elsewhere is waited for in transfers alone."""
        return item.code == codes.RANK_NEVER_JOINED and item.rank in self._wanted_in_transfers

    @cached_property
    def _wanted_in_transfers(self) -> frozenset[int]:
        """Ranks that others wait for in sends and receives alone."""
        return self._list_targets(is_p2p=True) - self._list_targets(is_p2p=False)

    def _list_targets(self, *, is_p2p: bool) -> frozenset[int]:
        targets = (wait.targets for wait in self.waits if wait.is_p2p == is_p2p)
        return frozenset[int]().union(*targets)

    @cached_property
    def _accused(self) -> frozenset[int]:
        """Ranks that others wait for, or that may hold up an op which all have entered.

        With them, ranks whose exception is recorded although they do not end.
        """
        raised = frozenset(self.root_exceptions) - self.dead
        return self.suspects | frozenset(self.in_flight) | raised

    @property
    def _wire_clashes(self) -> set[str]:
        """What can have been wrong on the wire; another op only where a transport complained."""
        return {Clash.SIZE, Clash.DTYPE} | ({Clash.OP} if self.wire_complaints else set())

    @cached_property
    def is_wire_mismatch(self) -> bool:
        """Whether sizes or types that differ on the wire explain what failed afterwards."""
        if self.split_mismatch is not None:
            return True
        return self.divergence is not None and self.divergence.clash in self._wire_clashes
