"""What rules judge: the facts, the divergences of groups, and what keeps each suspect."""

from __future__ import annotations

from functools import cached_property

from whystuck.diagnose.algorithms.alignment import Clash, align
from whystuck.diagnose.algorithms.divergence import Divergence, find_divergence
from whystuck.diagnose.algorithms.failures import (
    CRASH_SIGNALS,
    is_cascade,
    is_size_complaint,
    name_fatal,
    name_signal,
)
from whystuck.diagnose.algorithms.groups import is_active_only
from whystuck.diagnose.algorithms.habits import Habit, has_many_recorders, learn_habits, list_lapses
from whystuck.diagnose.algorithms.lapses import Parted, compare_lapses, make_divergence
from whystuck.diagnose.algorithms.lateness import Late, find_late
from whystuck.diagnose.algorithms.positions import Doing, locate
from whystuck.diagnose.algorithms.progress import slice_rank
from whystuck.diagnose.algorithms.splits import SplitMismatch, find_split_mismatch
from whystuck.diagnose.algorithms.waits import NO_ROW, Wait, find_cycle, find_knot
from whystuck.diagnose.cases import MAKERS
from whystuck.diagnose.explain import explain_alone, explain_hard, explain_soft
from whystuck.diagnose.facts import Facts
from whystuck.diagnose.losses import Losses, find_losses, is_lost_work
from whystuck.diagnose.short_limit import ShortLimit, find_short_limit
from whystuck.diagnose.story import LogView, Story
from whystuck.diagnose.suspicion import Suspicion
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException

_SIGTERM = 15


class Scene(Facts):
    """The shared analysis of one evidence. Everything is computed on first use."""

    @cached_property
    def story(self) -> Story:
        """What logs say went wrong, the root cause first."""
        is_running = self.evidence.incident.kind in {"stall", "snapshot"}
        return Story(LogView(self.evidence), MAKERS, is_running=is_running)

    @cached_property
    def root_exceptions(self) -> dict[int, PythonException]:
        """Uncaught exceptions that do not merely say that a peer is gone or late."""
        return {
            rank: item
            for rank, item in self.exceptions_by_rank.items()
            if item.is_main_thread
            and not is_cascade(item)
            and not is_size_complaint(item)
            and not self._is_caught(item)
        }

    def _is_caught(self, item: PythonException) -> bool:
        """Tell whether an exception that only a log holds did not end its rank."""
        ended = self.exits_by_rank.get(item.rank)
        return item.source == "log" and ended is not None and not ended.code

    @cached_property
    def is_crash(self) -> bool:
        """Whether somebody failed for a reason of its own, so that waiting is only a result."""
        if self.evidence.incident.kind in {"stall", "snapshot"}:
            return False
        return not self.timed_out and bool(self.exceptions_by_rank or self.failed_ranks)

    @cached_property
    def failed_ranks(self) -> frozenset[int]:
        """Ranks that ended with a code or signal of their own."""
        return frozenset(
            rank
            for rank, item in self.exits_by_rank.items()
            if (item.code or item.signal)
            and not item.after_launcher_kill
            and not self.is_cleaned_up(item)
        )

    @cached_property
    def divergence(self) -> Divergence | None:
        """The earliest divergence of a group, those with clashing forms first."""
        first = min(self._diverged, key=self._order, default=None) if self.is_stalled else None
        if self.lapse is None or (self.lapse.way is None and not self.has_ring):
            return first
        lapse = make_divergence(self.table, self.lapse)
        if first is not None and lapse is not None and self.get_site(self.lapse.row):
            # Call sites tell more of what a rank did, as long as they name the same ranks.
            return first if set(first.culprits) == set(lapse.culprits) else lapse
        return lapse

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
            found = [item for item in found if item.clash in {Clash.SIZE, Clash.DTYPE}]
        return found

    @cached_property
    def lapse(self) -> Parted | None:
        """The first break of habit that peers did not share, of ranks that use a device.

        Their hosts run ahead: what a rank waits in is often not what it did wrong.
        """
        table = self.table
        if self.is_crash or not self.is_stalled or is_active_only(table):
            return None
        if not self.waits or not self.device_ranks or has_many_recorders(table):
            return None
        lapses = list_lapses(table, self._habits)
        return next(iter(compare_lapses(table, self.groups, self._habits, lapses)), None)

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
        if is_clash or self.missed_half is not None:
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
    def late_ranks(self) -> tuple[Late, ...]:
        """Ranks that their peers wait for again and again, in a job that goes on."""
        is_stuck = self.is_stalled and bool(self.waiting)
        if self.is_crash or is_stuck or self.divergence or self.failed_ranks:
            return ()
        nodes = self.evidence.topology.node_by_rank
        return find_late(self.table, self.groups, nodes, self.device_ranks)

    @cached_property
    def ring(self) -> tuple[Wait, ...]:
        """Waits of ranks that wait for each other in a ring, in order; none while suspects are.

        Of the ops that a rank waits in, the one that the next rank of the ring has not come to.
        """
        if self.is_crash or not self.is_stalled or self.divergence or self.suspects:
            return ()
        if self.missed_half is not None or self.split_mismatch is not None:
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
        is_sure = is_hard and all(wait.is_sure for wait in self.ring)
        return Confidence.CERTAIN if is_sure else Confidence.LIKELY

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
        if self.missed_half is not None:
            return self._list_missed(self.missed_half)
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

    def _list_missed(self, parted: Parted) -> tuple[Wait, ...]:
        """Return the waits of the ranks whose transfer lacks its other half."""
        missing = frozenset(parted.broken)
        return tuple(
            Wait(
                rank,
                parted.group,
                int(self.table.seq[parted.rows[rank]]),
                parted.rows[rank],
                missing,
                is_p2p=True,
            )
            for rank in parted.true
        )

    @cached_property
    def _elsewhere(self) -> tuple[Suspicion, ...]:
        """Where suspects are that are in no op of their own."""
        ranks = sorted(self.suspects - set(self.in_flight))
        return tuple(item for rank in ranks if (item := explain_soft(self, rank)))

    def _is_unmatched(self, item: Suspicion) -> bool:
        """Tell whether a rank that is merely elsewhere is waited for in transfers alone."""
        waits = [wait for wait in self.waits if item.rank in wait.targets]
        return item.code == "H101" and bool(waits) and all(wait.is_p2p for wait in waits)

    @cached_property
    def _accused(self) -> frozenset[int]:
        """Ranks that others wait for, or that may hold up an op which all have entered.

        With them, ranks whose exception is recorded although they do not end.
        """
        raised = frozenset(self.root_exceptions) - self.dead
        return self.suspects | frozenset(self.in_flight) | raised

    @cached_property
    def is_wire_mismatch(self) -> bool:
        """Whether sizes or types that differ on the wire explain what failed afterwards."""
        if self.split_mismatch is not None:
            return True
        return self.divergence is not None and self.divergence.clash in {Clash.SIZE, Clash.DTYPE}

    @cached_property
    def crash_signals(self) -> dict[int, str]:
        """Ranks that ended by a signal of a fault in native code, with its name."""
        found = {
            rank: name
            for rank, item in self.exits_by_rank.items()
            if (name := name_signal(item)) in CRASH_SIGNALS
        }
        for fatal in self.evidence.fatals:
            if fatal.rank >= 0:
                found.setdefault(fatal.rank, name_fatal(fatal.reason))
        # An abort inside a collective follows from the end of a peer, when a peer has ended.
        causes = (set(found) | set(self.root_exceptions)) - self.aborted_in_collective
        killed = {rank for rank in self.failed_ranks if rank not in found}
        if causes or killed - set(self.cut_ranks):
            found = {
                rank: name for rank, name in found.items() if rank not in self.aborted_in_collective
            }
        return found

    @cached_property
    def aborted_in_collective(self) -> frozenset[int]:
        """Ranks that aborted while their main thread was in a collective."""
        return frozenset(
            fatal.rank
            for fatal in self.evidence.fatals
            if name_fatal(fatal.reason) == "SIGABRT"
            and fatal.threads
            and locate(fatal.threads[0].frames).doing in {Doing.COLLECTIVE, Doing.BACKWARD}
        )

    @cached_property
    def cut_ranks(self) -> tuple[int, ...]:
        """Ranks that failed because a peer was gone or late."""
        return tuple(
            sorted(rank for rank, item in self.exceptions_by_rank.items() if is_cascade(item))
        )

    @cached_property
    def killed_ranks(self) -> dict[int, str]:
        """Ranks that a signal from outside ended, before anything else failed."""
        found = {
            rank: name
            for rank, item in self.exits_by_rank.items()
            if (name := name_signal(item)) and name not in CRASH_SIGNALS
            if not self.is_cleaned_up(item) and rank not in self.root_exceptions
        }
        # Several ranks that get SIGTERM get it from somebody who ends the job, not the rank.
        terms = [rank for rank, item in self.exits_by_rank.items() if item.signal == _SIGTERM]
        if len(terms) > 1:
            found = {rank: name for rank, name in found.items() if name != "SIGTERM"}
        hard = {rank: name for rank, name in found.items() if name == "SIGKILL"}
        # Launchers clean up with SIGTERM first: beside a SIGKILL, a SIGTERM is theirs.
        return hard or found

    @property
    def victims(self) -> list[int]:
        """All ranks of the job, for findings that take the job down."""
        return sorted(self.ranks)
