"""Where the calls of ranks part: side by side, against their habits, and in transfers."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.algorithms.ops.alignment import Clash, align
from whystuck.diagnose.algorithms.ops.break_reasons import list_lapses
from whystuck.diagnose.algorithms.ops.call_patterns import (
    CallPattern,
    has_many_recorders,
    learn_habits,
)
from whystuck.diagnose.algorithms.ops.divergence import Divergence, find_divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.groups import is_active_only
from whystuck.diagnose.algorithms.ops.pattern_breaks import (
    PatternDivergence,
    compare_lapses,
    make_divergence,
)
from whystuck.diagnose.algorithms.ops.programs import compare_programs
from whystuck.diagnose.algorithms.ops.splits import SplitMismatch, find_split_mismatch
from whystuck.diagnose.algorithms.ops.untie import untie
from whystuck.diagnose.algorithms.ops.waits import Wait, find_cycle
from whystuck.diagnose.algorithms.transfers.odd_ends import TORN_SHARE, find_odd_end
from whystuck.diagnose.algorithms.transfers.odd_transfers import OddTransfer
from whystuck.diagnose.algorithms.transfers.peers import Stray
from whystuck.diagnose.context.departed import find_departed, find_strayed
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.logs import Logs
from whystuck.diagnose.context.facts.movement import Movement
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.model import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Divergences:
    """The divergences of groups, and what ranks did against their habits."""

    evidence: Evidence
    logs: Logs
    ops: Ops
    exits: Exits
    waits: Waits
    movement: Movement

    @cached_property
    def first(self) -> Divergence | None:
        """The earliest divergence of a group, those with clashing forms first."""
        if self.odd_transfers:
            return None
        found = self._find_first()
        if found is not None and found.is_tied and not has_many_recorders(self.ops.table):
            found = untie(self.ops.table, found, self._habits)
        is_open = (
            found.is_even and (found.is_tied or self.lapse is None) if found else not self.lapse
        )
        if is_open:
            # Of two sides of one size, ranks of other groups that run the same program may tell.
            whole = self._parted_programs
            if whole is not None and (found is None or not whole.is_even):
                return whole
        return found

    def _find_first(self) -> Divergence | None:
        """Find where the calls of a group part, side by side or against the habits of ranks."""
        is_stalled = self.movement.is_stalled
        first = min(self._by_group, key=self._order, default=None) if is_stalled else None
        if self.lapse is None or (self.lapse.way is None and not self._has_wait_cycle):
            return first
        lapse = make_divergence(self.ops.table, self.lapse, self._lapses)
        if first is not None and lapse is not None and self.ops.get_site(self.lapse.row):
            # Call sites tell more of what a rank did, as long as they name the same ranks.
            if set(first.culprits) == set(lapse.culprits):
                # Another op in the place of a known call, which itself is known, is a skip.
                is_skip = (
                    first.by_form
                    and first.way is DivergenceKind.OP
                    and lapse.way is DivergenceKind.SKIPPED
                )
                return lapse if is_skip else first
            if self.ops.device_ranks or first.is_tied:
                return lapse
            return self._choose_older(first, lapse)
        return lapse

    def _choose_older(self, first: Divergence, lapse: Divergence) -> Divergence:
        """Return the divergence that came first, of two in different groups.

        A host waits in each op: what was left out or added on one group brings others out of step.
        """
        created_ns = self.ops.table.created_ns
        firsts, lapses = (
            min(int(created_ns[row]) for row in one.rows.values()) for one in (first, lapse)
        )
        return lapse if lapses < firsts else first

    @cached_property
    def _by_group(self) -> list[Divergence]:
        """The divergence of each group, by itself."""
        found = []
        for group in self.ops.groups:
            if len(group.rows_by_rank) > 1:
                divergence = find_divergence(align(self.ops.table, group), self.evidence.sources)
                if divergence is not None:
                    found.append(divergence)
        if self.exits.is_crash:
            # Ranks that are torn down stop anywhere: only what was on the wire counts.
            found = [item for item in found if item.clash in self._wire_clashes]
        return found

    @property
    def lapse(self) -> PatternDivergence | None:
        """The first break of habit that peers did not share.

        What a rank waits in is often not what it did wrong: with several groups it is stuck in
        another one, and hosts of devices run ahead.
        """
        return self._lapses[0] if self._lapses else None

    @cached_property
    def _lapses(self) -> list[PatternDivergence]:
        table = self.ops.table
        if not self.movement.is_hung or is_active_only(table):
            return []
        if not self.waits.pending or has_many_recorders(table):
            return []
        if not self.ops.device_ranks and self.waits.suspects - set(self.waits.in_flight):
            # A host is in one op at a time: who is in none explains more than what it did before.
            return []
        lapses = list_lapses(table, self._habits, self.evidence.sources)
        found = compare_lapses(table, self.ops.groups, self._habits, lapses)
        # Sends and receives of hosts are judged by the ends of their logs.
        return [one for one in found if self.ops.device_ranks or not one.is_transfer]

    @cached_property
    def _parted_programs(self) -> Divergence | None:
        """Where ranks of one program part that have no habit yet."""
        if not self.movement.is_hung or self.ops.device_ranks:
            return None
        if self.waits.suspects - set(self.waits.in_flight) or has_many_recorders(self.ops.table):
            return None
        if not self.waits.pending or any(wait.is_p2p for wait in self.waits.pending):
            # Sends and receives differ by rank, and one of them may be what went wrong.
            return None
        return compare_programs(self.ops.table, self.ops.groups, self.evidence.sources)

    @cached_property
    def _habits(self) -> dict[int, CallPattern]:
        return learn_habits(self.ops.table)

    def starts_oddly(self, wait: Wait) -> bool:
        """Tell whether the first calls of a rank are not those that its queue shows to follow."""
        habit = self._habits.get(wait.rank) if wait.rank in self.ops.device_ranks else None
        return habit is not None and not habit.is_even

    @cached_property
    def missed_half(self) -> PatternDivergence | None:
        """A transfer of which a rank left out its half, against its habit."""
        lapse = self.lapse
        return lapse if lapse is not None and lapse.is_transfer else None

    @cached_property
    def odd_transfers(self) -> tuple[OddTransfer, ...]:
        """Sends and receives that have no partner as a rank departed from its habit."""
        if not self._may_depart:
            return ()
        return find_departed(self.ops.table, self.waits, lambda: self._habits)

    @cached_property
    def odd_ends(self) -> tuple[OddTransfer, ...]:
        """The same of ranks that lost the connection to one that had ended well."""
        left, cut = self.exits.left_and_cut
        if not left or self.split_mismatch is not None or has_many_recorders(self.ops.table):
            return ()
        habits = learn_habits(self.ops.table, TORN_SHARE)
        parties = {rank: habits[rank] for rank in (*left, *cut) if rank in habits}
        odd = find_odd_end(self.ops.table, self.ops.groups, cut, parties)
        return () if odd is None or len(parties) < len({*left, *cut}) else (odd,)

    @cached_property
    def strays(self) -> tuple[Stray, ...]:
        """The same of ranks without a log of their ops, by the counts of their probes."""
        return find_strayed(self.evidence) if self._may_depart and not self.odd_transfers else ()

    @property
    def _may_depart(self) -> bool:
        """Whether neither call sites nor forms of collectives show that ranks parted."""
        is_parted = bool(self._by_group) or self.split_mismatch is not None
        return self.movement.is_hung and not is_parted

    @cached_property
    def _has_wait_cycle(self) -> bool:
        """Whether ranks wait for each other in a ring."""
        return not self.waits.suspects and bool(find_cycle(self.waits.targets_by_rank))

    @cached_property
    def split_mismatch(self) -> SplitMismatch | None:
        """Two ranks that do not agree on what one of them sends the other in all_to_all."""
        return find_split_mismatch(self.evidence.ops) if self.movement.is_stalled else None

    def _order(self, divergence: Divergence) -> tuple[bool, int]:
        table = self.ops.table
        rows = divergence.hard_rows.values()
        return divergence.clash == Clash.ABSENT, min(int(table.created_ns[row]) for row in rows)

    @property
    def _wire_clashes(self) -> set[str]:
        """What can have been wrong on the wire; another op only where a transport complained."""
        return {Clash.SIZE, Clash.DTYPE} | ({Clash.OP} if self.logs.wire_complaints else set())

    @cached_property
    def is_wire_mismatch(self) -> bool:
        """Whether sizes or types that differ on the wire explain what failed afterwards."""
        if self.split_mismatch is not None:
            return True
        return self.first is not None and self.first.clash in self._wire_clashes
