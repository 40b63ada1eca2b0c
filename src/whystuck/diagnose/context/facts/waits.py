"""Who waits for whom: by pending ops, by stacks, and by what NCCL answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from whystuck.diagnose.algorithms.ops.progress import find_oldest, is_on_device
from whystuck.diagnose.algorithms.ops.waits import (
    NO_ROW,
    Wait,
    find_cycle,
    find_ends,
    find_targets,
    find_waits,
    prefer_known,
)
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_thread_in_call,
    is_transferring,
    is_waiting_for_threads,
    may_wait_for_device,
)
from whystuck.diagnose.algorithms.transfers.host_pairs import (
    drop_behind,
    find_host_waits,
    is_logged,
    list_logged_groups,
)
from whystuck.diagnose.algorithms.transfers.pairs import find_pair_waits
from whystuck.diagnose.algorithms.transfers.peers import find_seen_waits
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.processes import Processes
from whystuck.diagnose.context.facts.ranks import Ranks
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.context.ras_facts import Laggard, find_laggards
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import is_process

# So many ranks that gave up are no chance.
_SEVERAL = 2
_BLOCKED = {Doing.COLLECTIVE, Doing.BACKWARD, Doing.JOINING, Doing.UNKNOWN}


@dataclass(frozen=True, eq=False, repr=False)
class Waits:
    """The waits of all ranks, and the ranks that nobody keeps waiting."""

    evidence: Evidence
    policy: Policy
    exceptions: Exceptions
    ops: Ops
    ranks: Ranks
    stacks: Stacks
    processes: Processes
    exits: Exits

    @cached_property
    def pending(self) -> tuple[Wait, ...]:
        """Pending ops of the ranks that are blocked in them."""
        table = self.ops.table
        oldest = find_oldest(table)
        logged = list_logged_groups(table, self.ops.groups)
        others = [group for group in self.ops.groups if group not in logged]
        found = (
            *find_waits(table, self.ops.groups, oldest, self.ops.device_ranks),
            *find_host_waits(table, logged, self.evidence.ops),
            *find_pair_waits(table, others, oldest),
            *self._list_unseen(oldest),
        )
        kept = drop_behind(table, found)
        # What a rank wrote itself of its waits goes before what a look into it tells, where the
        # logs tell of both ends.
        logs = {log.rank for log in self.evidence.ops.logs}
        looks = {wait.rank for wait in self.evidence.peer_waits if wait.is_main and wait.sure}
        own = [wait for wait in kept if is_logged(table, wait.row)]
        poor = {wait.rank for wait in own if wait.is_p2p and not wait.missing <= logs} & looks
        kept = tuple(wait for wait in kept if not (wait.is_p2p and wait.rank in poor))
        known = {wait.rank for wait in own} - poor
        seen = [wait for wait in self.evidence.peer_waits if wait.rank not in known]
        kept += find_seen_waits(seen, self.evidence.peer_counts, self.ops.groups)
        blocked = [wait for wait in map(self._doubt_ends, kept) if self._is_blocked(wait)]
        if any(one.missing and one.rank in self.ops.last_unseen for one in blocked):
            # An op that somebody has not issued is pending; one that all have need not be.
            blocked = [one for one in blocked if one.row not in self.ops.last_unseen.values()]
        return prefer_known(blocked, self.ranks.unknown)

    def _doubt_ends(self, wait: Wait) -> Wait:
        """Leave open whether peers are past an op, where nobody saw their ends."""
        if wait.finished.isdisjoint(self.ops.last_unseen):
            return wait
        finished = wait.finished - set(self.ops.last_unseen)
        is_stalled = wait.is_device_stalled and bool(finished)
        return replace(wait, finished=finished, is_device_stalled=is_stalled)

    def _list_unseen(self, oldest: Mapping[int, int]) -> Iterator[Wait]:
        """Yield the last op of ranks without a pending one, where nobody saw its end.

        Only a stack can tell that it is not over.
        """
        group_by_row = {
            row: group
            for group in self.ops.groups
            for rank, rows in (*group.rows_by_rank.items(), *group.p2p_by_rank.items())
            if (row := self.ops.last_unseen.get(rank)) is not None and row in rows
        }
        for rank, row in self.ops.last_unseen.items():
            if rank not in oldest and row in group_by_row:
                seq, is_p2p = int(self.ops.table.seq[row]), bool(self.ops.table.is_p2p[row])
                yield Wait(
                    rank, group_by_row[row], seq, row, frozenset(), is_p2p=is_p2p, needs_stack=True
                )

    def _is_on_device(self, wait: Wait) -> bool:
        return wait.row != NO_ROW and is_on_device(self.ops.table, wait.row)

    def _is_blocked(self, wait: Wait) -> bool:
        if wait.rank in self.exits.dead:
            return False
        # Ops on a device wait there, wherever the host is: in any call that needs the device, or
        # far ahead.
        on_device = self._is_on_device(wait)
        if wait.rank in self.exceptions.timed_out or (on_device and not wait.needs_stack):
            return True
        position = self.stacks.positions.get(wait.rank)
        if position is None or position.doing in _BLOCKED:
            return position is not None or not wait.needs_stack
        if position.doing is not Doing.USER:
            return False
        if is_waiting_for_threads(position) and self._has_thread_in_call(wait.rank):
            return True
        # `work.wait()` runs in C++: the innermost Python frame is the user's own line.
        line = self.stacks.find_source_line(position.frames[0])
        return ".wait(" in line or (on_device and may_wait_for_device(position.frames, line))

    def _has_thread_in_call(self, rank: int) -> bool:
        samples = self.stacks.samples_by_rank.get(rank, [])
        return any(is_thread_in_call(one) for last in samples[-1:] for one in last.threads)

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Ranks that wait for others, by their pending ops or by their stacks."""
        ahead = self.laggard.waiting if self.laggard else frozenset()
        told = (
            self.exceptions.timed_out_by_log - self.exits.dead
            if self.stacks.are_pasted
            else frozenset()
        )
        waits = frozenset(wait.rank for wait in self.pending)
        return self.waiting_by_stack | waits | ahead | told

    @cached_property
    def laggard(self) -> Laggard | None:
        """Whom the others wait for by NCCL's RAS, in a stall of which no op was recorded.

        Counts of a job that moves differ for a moment, too: a snapshot does not have it.
        """
        if self.ops.recorded_ranks or self.evidence.incident.kind != "stall":
            return None
        return find_laggards(self.evidence, self.ranks.all)

    @cached_property
    def waiting_by_stack(self) -> frozenset[int]:
        """Ranks whose stack shows that they wait for others."""
        return frozenset(
            rank
            for rank, position in self.stacks.positions.items()
            if rank not in self.exits.dead
            and (
                position.doing in {Doing.COLLECTIVE, Doing.JOINING}
                or self._idles_in_backward(rank)
                or self._is_one_of_waiting(rank)
            )
        )

    def _is_one_of_waiting(self, rank: int) -> bool:
        """Tell whether a process of unknown rank, in a wait for its device, is one that gave up.

        Where logs tell of several ranks that waited in vain, their stacks are pasted without names.
        """
        told = self.exceptions.timed_out_by_log
        if not is_process(rank) or not self.stacks.are_pasted or len(told) < _SEVERAL:
            return False
        frames = self.stacks.positions[rank].frames
        return may_wait_for_device(frames, self.stacks.find_source_line(frames[0]))

    @cached_property
    def in_transfer_by_stack(self) -> frozenset[int]:
        """Ranks whose stack shows that they wait in a send or a receive, with whomever."""
        return frozenset(
            rank
            for rank in self.waiting_by_stack
            if is_transferring(self.stacks.positions[rank].frames)
        )

    def _idles_in_backward(self, rank: int) -> bool:
        """Tell whether a rank without a record of its ops sleeps in backward: it reduces there."""
        if (
            rank in self.ops.recorded_ranks
            or self.stacks.positions[rank].doing is not Doing.BACKWARD
        ):
            return False
        share = self.processes.activities[rank].cpu_share
        if share is None:
            return rank in self.in_backward_together
        return share < self.policy.idle_cpu_share

    @cached_property
    def in_backward_together(self) -> frozenset[int]:
        """Most ranks of pasted stacks that are at one line of backward: what they do there waits.

        Nobody measured whether they compute; who is there alone may.
        """
        if not self.stacks.are_pasted:
            return frozenset()
        at: dict[Frame | None, set[int]] = {}
        for rank, position in self.stacks.positions.items():
            if position.doing is Doing.BACKWARD:
                at.setdefault(position.user, set()).add(rank)
        most = max(at.values(), key=len, default=set[int]())
        is_most = 2 * len(most) > len(self.stacks.positions) > 1
        return frozenset(most) if is_most else frozenset()

    @cached_property
    def targets_by_rank(self) -> dict[int, frozenset[int]]:
        """For each waiting rank, the ranks it waits for."""
        targets = find_targets(self.pending)
        if self.laggard:
            targets |= dict.fromkeys(self.laggard.waiting, frozenset(self.laggard.ranks))
        absent = self.ranks.all - self.waiting
        for rank in self.waiting - set(targets):
            # Only its stack tells that it waits, not where.
            targets[rank] = absent
        return targets

    @cached_property
    def first_wait_for(self) -> dict[int, Wait]:
        """For each rank that is missing from an op, the first wait for it."""
        found: dict[int, Wait] = {}
        done: set[frozenset[int]] = set()
        for wait in self.pending:  # the waits of one op share the set of those it lacks
            if wait.missing not in done:
                done.add(wait.missing)
                for rank in wait.missing:
                    found.setdefault(rank, wait)
        return found

    @cached_property
    def suspects(self) -> frozenset[int]:
        """Ranks that others wait for and that wait for nobody.

        Ranks that wait for each other are stuck whatever became of those nobody knows of.
        """
        ends = find_ends(self.targets_by_rank)
        if ends.isdisjoint(self.ranks.seen) and ends and find_cycle(self.targets_by_rank):
            ends = frozenset()
        return ends | frozenset(self.device_stalls)

    @cached_property
    def device_stalls(self) -> dict[int, Wait]:
        """Ranks whose own device does not finish an op that is over for peers."""
        stalled = {wait.rank: wait for wait in self.pending if wait.is_device_stalled}
        return stalled or self.not_started

    @cached_property
    def not_started(self) -> dict[int, Wait]:
        """Ranks whose device has not started an op that all have issued and others started.

        Only a recorder that keeps the times of devices tells what they started.
        """
        table = self.ops.table
        waits: dict[tuple[int, int], list[Wait]] = {}
        for wait in self.pending:
            is_own = wait.rank in self.ops.device_ranks and wait.row != NO_ROW and not wait.is_p2p
            if is_own and wait.is_in_flight:
                waits.setdefault((id(wait.group), wait.seq), []).append(wait)
        found: dict[int, Wait] = {}
        for here in waits.values():
            late = [wait for wait in here if not table.started[wait.row]]
            if late and len(late) < len(here) == len(here[0].group.members):
                found |= {wait.rank: wait for wait in late}
        return found

    @cached_property
    def in_flight(self) -> dict[int, Wait]:
        """Ranks in an op that all members have entered, and that wait for nobody elsewhere."""
        return {
            wait.rank: wait
            for wait in self.pending
            if wait.is_in_flight and not self.targets_by_rank.get(wait.rank)
        }
