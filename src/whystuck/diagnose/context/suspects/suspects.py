"""What keeps each suspect, and what else explains that ranks wait in vain."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import Clash
from whystuck.diagnose.algorithms.ops.waits import Wait
from whystuck.diagnose.algorithms.stacks.positions import Doing
from whystuck.diagnose.context.departed import list_missed
from whystuck.diagnose.context.divergences import Divergences
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.explanations import (
    explain_alone,
    explain_hard,
    explain_soft,
)
from whystuck.diagnose.context.suspects.parting import find_stack_parting
from whystuck.diagnose.context.suspects.past_call import find_past_call
from whystuck.diagnose.context.suspects.short_limit import ShortLimit, find_short_limit
from whystuck.diagnose.context.suspects.stack_sides import Parting
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.diagnose.context.suspects.thread_error import explain_dead_caller
from whystuck.diagnose.context.suspects.unjoined import find_unjoined
from whystuck.diagnose.context.wait_cycle import WaitCycle
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Confidence


@dataclass(frozen=True, eq=False, repr=False)
class Suspects:
    """What keeps each suspect."""

    facts: Facts
    divergences: Divergences
    wait_cycle: WaitCycle

    @cached_property
    def explained(self) -> tuple[Suspicion, ...]:
        """What keeps each suspect; only the strongest kind of explanation is kept."""
        facts, parted = self.facts, self.divergences
        if not facts.movement.is_hung or parted.split_mismatch is not None:
            return ()
        if self._dead_callers or self._has_clash or parted.missed_half or self.parting:
            return self._dead_callers
        hard = [item for rank in sorted(self._accused) if (item := explain_hard(facts, rank))]
        if hard:
            return tuple(hard)
        if parted.first is not None or self.short_limit is not None:
            return ()
        soft = [item for item in self._elsewhere if not self._is_unmatched(item)]
        soft = [item for item in soft if not self._may_wait_in_backward(item)]
        if self._are_seen_apart:
            soft = [item for item in soft if item.rank in facts.ranks.seen]
        is_told = self._is_told and all(one.confidence is Confidence.POSSIBLE for one in soft)
        if is_told or soft or facts.waits.waiting:
            soft = [] if is_told else soft
            # A rank that evidence shows elsewhere explains more than one nobody knows of.
            seen = [item for item in soft if item.rank in facts.ranks.seen] or soft
            return tuple([item for item in seen if item.is_blamed] or seen)
        # Nobody waits, and yet nothing moves: all may be in the compiler, or at a silent mount.
        found = [item for rank in sorted(facts.ranks.all) if (item := explain_alone(facts, rank))]
        return tuple(found)

    @property
    def _is_told(self) -> bool:
        """Whether logs tell who left out a half of a transfer: more than where that rank is now."""
        return any(
            case.code == codes.P2P_UNMATCHED and case.ranks and case.confidence is Confidence.LIKELY
            for case in self.facts.logs.story.roots
        )

    @property
    def _has_clash(self) -> bool:
        first = self.divergences.first
        return first is not None and first.clash != Clash.ABSENT

    @cached_property
    def _dead_callers(self) -> tuple[Suspicion, ...]:
        """Ranks of which a thread failed: without its calls they part, or wait in a ring."""
        ranks = sorted(self.facts.exceptions.in_threads)
        found = [explain_dead_caller(self.facts, rank) for rank in ranks]
        return tuple(item for item in found if item is not None)

    @cached_property
    def _are_seen_apart(self) -> bool:
        """Whether pasted stacks show most ranks in backward, and others wait elsewhere.

        It is they who keep each other, whatever those do whose stacks nobody pasted.
        """
        waits = self.facts.waits
        at = self.facts.stacks.positions.keys()
        return bool(waits.in_backward_together) and waits.in_backward_together < at

    @cached_property
    def parting(self) -> Parting | None:
        """Where ranks part by their stacks, all of which wait: no record has calls that set up."""
        if self.facts.exits.is_crash:
            return None
        found = find_stack_parting(self.facts) or find_unjoined(self.facts)
        # What names nobody tells less.
        is_open = found is None or not found.culprits
        return (find_past_call(self.facts) if is_open else None) or found

    @cached_property
    def short_limit(self) -> ShortLimit | None:
        """A time limit that ended an op which was only slow."""
        has_ended = self.facts.exceptions.timed_out and not self.divergences.first
        return find_short_limit(self.facts) if has_ended else None

    @cached_property
    def unmatched(self) -> tuple[Wait, ...]:
        """Point-to-point ops whose peer has not posted the other half and waits elsewhere."""
        waits, parted = self.facts.waits, self.divergences
        if not self.facts.movement.is_hung or parted.first:
            return ()
        if parted.split_mismatch is not None or parted.odd_transfers or parted.strays:
            return ()
        if parted.missed_half is not None:
            return list_missed(self.facts.ops.table, parted.missed_half)
        if self.wait_cycle.edges:
            is_mixed = not all(wait.is_p2p for wait in self.wait_cycle.edges)
            pairs = [wait for wait in self.wait_cycle.edges if wait.is_p2p and wait.missing]
            return tuple(pairs) if is_mixed else ()
        elsewhere = {item.rank for item in self._elsewhere if self._is_unmatched(item)}
        # Nobody is missing from what these are in: they post the other half once it is over.
        silent = waits.suspects & waits.waiting - set(waits.in_flight)
        return tuple(
            wait
            for wait in waits.pending
            if wait.is_p2p and wait.missing and wait.missing <= silent | elsewhere
        )

    @cached_property
    def _elsewhere(self) -> tuple[Suspicion, ...]:
        """Where suspects are that are in no op of their own."""
        ranks = sorted(self.facts.waits.suspects - set(self.facts.waits.in_flight))
        return tuple(item for rank in ranks if (item := explain_soft(self.facts, rank)))

    def _is_unmatched(self, item: Suspicion) -> bool:
        """Return whether a rank that is merely elsewhere is waited for in transfers alone."""
        return item.code == codes.RANK_NEVER_JOINED and item.rank in self._wanted_in_transfers

    def _may_wait_in_backward(self, item: Suspicion) -> bool:
        """Return whether pasted stacks show a rank in backward, and the others in several places.

        Backward waits for the reductions in it, as far as anybody knows, and so may the others. One
        that is alone in it, while all others are in one collective, is late.
        """
        at = self.facts.stacks.positions
        if self.facts.evidence.incident.kind != "files" or item.rank not in at:
            return False
        others = [one for rank, one in at.items() if rank != item.rank]
        is_torn = len({one.user for one in others}) > 1
        is_waiting = any(one.doing is Doing.COLLECTIVE for one in others)
        return at[item.rank].doing is Doing.BACKWARD and is_torn and is_waiting

    @cached_property
    def _wanted_in_transfers(self) -> frozenset[int]:
        """Ranks that others wait for in sends and receives alone."""
        return self._list_targets(is_p2p=True) - self._list_targets(is_p2p=False)

    def _list_targets(self, *, is_p2p: bool) -> frozenset[int]:
        targets = (wait.targets for wait in self.facts.waits.pending if wait.is_p2p == is_p2p)
        return frozenset[int]().union(*targets)

    @cached_property
    def _accused(self) -> frozenset[int]:
        """Ranks that others wait for, or that may hold up an op which all have entered.

        With them, ranks whose exception is recorded although they do not end.
        """
        exits, waits = self.facts.exits, self.facts.waits
        raised = frozenset(exits.root_exceptions) - exits.dead
        return waits.suspects | frozenset(waits.in_flight) | raised
