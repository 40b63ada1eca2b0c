"""What the tables of one evidence say of each rank, worked out once, on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout, name_known
from whystuck.diagnose.algorithms.ops.groups import is_active_only
from whystuck.diagnose.algorithms.ops.progress import (
    find_last_unseen,
    find_longest_wait,
    find_oldest,
    is_on_device,
    slice_rank,
)
from whystuck.diagnose.algorithms.ops.waits import (
    NO_ROW,
    Wait,
    find_cycle,
    find_ends,
    find_targets,
    find_waits,
    prefer_known,
)
from whystuck.diagnose.algorithms.processes.storage import find_silence
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_transferring,
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
from whystuck.diagnose.context.ras_facts import Laggard, find_laggards
from whystuck.diagnose.context.views import Views
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.live import ExitRecord

_BLOCKED = {Doing.COLLECTIVE, Doing.BACKWARD, Doing.JOINING, Doing.UNKNOWN}
_NS_PER_S = 1e9
_SIGKILL, _SIGTERM = 9, 15
_LAUNCHER_GRACE_NS = 4_000_000_000


class Facts(Views):
    """What the views of one evidence tell together: who waits, who is gone, what moves."""

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Pending ops of the ranks that are blocked in them."""
        table = self.table
        oldest = find_oldest(table)
        logged = list_logged_groups(table, self.groups)
        others = [group for group in self.groups if group not in logged]
        found = (
            *find_waits(table, self.groups, oldest, self.device_ranks),
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
        kept += find_seen_waits(seen, self.evidence.peer_counts, self.groups)
        blocked = [wait for wait in map(self._doubt_ends, kept) if self._is_blocked(wait)]
        if any(one.missing and one.rank in self._last_unseen for one in blocked):
            # An op that somebody has not issued is pending; one that all have need not be.
            blocked = [one for one in blocked if one.row not in self._last_unseen.values()]
        return prefer_known(blocked, self.unknown_ranks)

    def _doubt_ends(self, wait: Wait) -> Wait:
        """Leave open whether peers are past an op, where nobody saw their ends."""
        if wait.finished.isdisjoint(self._last_unseen):
            return wait
        finished = wait.finished - set(self._last_unseen)
        is_stalled = wait.is_device_stalled and bool(finished)
        return replace(wait, finished=finished, is_device_stalled=is_stalled)

    def _list_unseen(self, oldest: Mapping[int, int]) -> Iterator[Wait]:
        """Yield the last op of ranks without a pending one, where nobody saw its end.

        Only a stack can tell that it is not over.
        """
        group_by_row = {
            row: group
            for group in self.groups
            for rank, rows in (*group.rows_by_rank.items(), *group.p2p_by_rank.items())
            if (row := self._last_unseen.get(rank)) is not None and row in rows
        }
        for rank, row in self._last_unseen.items():
            if rank not in oldest and row in group_by_row:
                seq, is_p2p = int(self.table.seq[row]), bool(self.table.is_p2p[row])
                yield Wait(
                    rank, group_by_row[row], seq, row, frozenset(), is_p2p=is_p2p, needs_stack=True
                )

    @property
    def endless_ranks(self) -> frozenset[int]:
        """Ranks of whose ops on devices only the issue is known, not the end."""
        return frozenset(self._last_unseen)

    @cached_property
    def _last_unseen(self) -> dict[int, int]:
        return find_last_unseen(self.table)

    def _is_on_device(self, wait: Wait) -> bool:
        return wait.row != NO_ROW and is_on_device(self.table, wait.row)

    def _is_blocked(self, wait: Wait) -> bool:
        if wait.rank in self.dead:
            return False
        # Ops on a device wait there, wherever the host is: in any call that needs the device, or
        # far ahead.
        on_device = self._is_on_device(wait)
        if wait.rank in self.timed_out or (on_device and not wait.needs_stack):
            return True
        position = self.positions.get(wait.rank)
        if position is None or position.doing in _BLOCKED:
            return position is not None or not wait.needs_stack
        if position.doing is not Doing.USER:
            return False
        # `work.wait()` runs in C++: the innermost Python frame is the user's own line.
        line = self.find_source_line(position.frames[0])
        return ".wait(" in line or (on_device and may_wait_for_device(position.frames, line))

    @cached_property
    def timed_out(self) -> frozenset[int]:
        """Ranks whose collective ran into its time limit: they waited until then.

        Those that waited for others to come, before there was any group, are not among them.
        """
        return frozenset(
            rank
            for rank, item in self.exceptions_by_rank.items()
            if is_timeout(item) and name_known(item) != codes.RENDEZVOUS_FAILED
        )

    @cached_property
    def dead(self) -> frozenset[int]:
        """Ranks that ended by themselves or from outside, not by their launcher's clean-up."""
        zombies = {rank for rank, item in self.activities.items() if item.state in {"Z", "X"}}
        ended = {rank for rank, item in self.exits_by_rank.items() if not self.is_cleaned_up(item)}
        return frozenset(ended | zombies) - self.timed_out

    def is_cleaned_up(self, ended: ExitRecord) -> bool:
        """Tell whether the launcher ended a rank because of another one's failure.

        Launchers send SIGTERM first: a SIGKILL within their time of grace is not theirs.
        """
        if not ended.signal:
            return False
        incident = self.evidence.incident
        if incident.outside_signal or incident.killed_ns:
            return True
        if ended.signal == _SIGKILL and ended.ended_ns:
            first_ns = min(item.ended_ns for item in self.exits_by_rank.values())
            return ended.after_launcher_kill and ended.ended_ns - first_ns > _LAUNCHER_GRACE_NS
        others_raised = bool(set(self.exceptions_by_rank) - {ended.rank})
        return ended.after_launcher_kill or (ended.signal == _SIGTERM and others_raised)

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Ranks that wait for others, by their pending ops or by their stacks."""
        ahead = self.laggard.waiting if self.laggard else frozenset()
        told = self.timed_out_by_log - self.dead if self.has_pasted_stacks else frozenset()
        waits = frozenset(wait.rank for wait in self.waits)
        return self.waiting_by_stack | waits | ahead | told

    @cached_property
    def laggard(self) -> Laggard | None:
        """Whom the others wait for by NCCL's RAS, in a stall of which no op was recorded.

        Counts of a job that moves differ for a moment, too: a snapshot does not have it.
        """
        if self.recorded_ranks or self.evidence.incident.kind != "stall":
            return None
        return find_laggards(self.evidence, self.ranks)

    @cached_property
    def waiting_by_stack(self) -> frozenset[int]:
        """Ranks whose stack shows that they wait for others."""
        return frozenset(
            rank
            for rank, position in self.positions.items()
            if rank not in self.dead
            and (
                position.doing in {Doing.COLLECTIVE, Doing.JOINING} or self._idles_in_backward(rank)
            )
        )

    @cached_property
    def in_transfer_by_stack(self) -> frozenset[int]:
        """Ranks whose stack shows that they wait in a send or a receive, with whomever."""
        return frozenset(
            rank for rank in self.waiting_by_stack if is_transferring(self.positions[rank].frames)
        )

    def _idles_in_backward(self, rank: int) -> bool:
        """Tell whether a rank without a record of its ops sleeps in backward: it reduces there."""
        if rank in self.recorded_ranks or self.positions[rank].doing is not Doing.BACKWARD:
            return False
        share = self.activities[rank].cpu_share
        return share is not None and share < self.policy.idle_cpu_share

    @cached_property
    def targets_by_rank(self) -> dict[int, frozenset[int]]:
        """For each waiting rank, the ranks it waits for."""
        targets = find_targets(self.waits)
        if self.laggard:
            targets |= dict.fromkeys(self.laggard.waiting, frozenset(self.laggard.ranks))
        absent = self.ranks - self.waiting
        for rank in self.waiting - set(targets):
            # Only its stack tells that it waits, not where.
            targets[rank] = absent
        return targets

    @cached_property
    def first_wait_for(self) -> dict[int, Wait]:
        """For each rank that is missing from an op, the first wait for it."""
        found: dict[int, Wait] = {}
        done: set[frozenset[int]] = set()
        for wait in self.waits:  # the waits of one op share the set of those it lacks
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
        if ends.isdisjoint(self.seen_ranks) and ends and find_cycle(self.targets_by_rank):
            ends = frozenset()
        return ends | frozenset(self.device_stalls)

    @cached_property
    def unknown_ranks(self) -> frozenset[int]:
        """Ranks of the job of which no artifact tells anything."""
        return self.ranks - self.seen_ranks

    @cached_property
    def device_stalls(self) -> dict[int, Wait]:
        """Ranks whose own device does not finish an op that is over for peers."""
        stalled = {wait.rank: wait for wait in self.waits if wait.is_device_stalled}
        return stalled or self.not_started

    @cached_property
    def lost_ranks(self) -> frozenset[int]:
        """Ranks whose dump does not hold their oldest op that is not over: its ring has lost it."""
        table = self.table
        wrapped = {dump.rank for dump in table.dumps if dump.first_record > 0}
        if not is_active_only(table):
            heads = find_oldest(table)
            return frozenset(
                rank for rank in wrapped if heads.get(rank) == slice_rank(table, rank).start
            )
        # A dump of active ops starts late anyway; the counters tell of what is missing.
        status, lost = table.statuses, set()
        for group in self.groups:
            for index in () if group.p2p_by_rank else group.counters:
                rank = int(status.rank[index])
                rows = group.rows_by_rank.get(rank)
                if rows is not None and int(table.seq[rows[0]]) > int(status.completed[index]) + 1:
                    lost.add(rank)
        return frozenset(lost & self.device_ranks)

    @cached_property
    def not_started(self) -> dict[int, Wait]:
        """Ranks whose device has not started an op that all have issued and others started.

        Only a recorder that keeps the times of devices tells what they started.
        """
        table = self.table
        waits: dict[tuple[int, int], list[Wait]] = {}
        for wait in self.waits:
            is_own = wait.rank in self.device_ranks and wait.row != NO_ROW and not wait.is_p2p
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
            for wait in self.waits
            if wait.is_in_flight and not self.targets_by_rank.get(wait.rank)
        }

    @cached_property
    def stalled_s(self) -> float:
        """How long nothing moved: as the watcher saw it, or the age of the oldest pending op."""
        incident = self.evidence.incident
        if incident.stalled_s or not incident.opened_ns or not self.waits:
            return incident.stalled_s
        table = self.table
        rows = [wait.row for wait in self.waits if wait.row != NO_ROW]
        oldest = min((int(table.created_ns[row]) for row in rows), default=0)
        return max(0.0, (incident.opened_ns - oldest) / _NS_PER_S) if oldest else 0.0

    @cached_property
    def is_stalled(self) -> bool:
        """Whether the evidence was taken in a stall. Dumps that people bring are taken as one."""
        incident = self.evidence.incident
        if incident.is_interrupt and incident.is_moving:
            return False  # ranks end anywhere
        if incident.command_exit == 0:
            return False  # an op without an end is one whose end came too late to be recorded
        if incident.kind != "snapshot":
            return True
        if self.stalled_s:
            return self.stalled_s >= self.policy.snapshot_stall_s
        # The age of sends and receives that only stacks show is not known.
        return self.is_still

    @cached_property
    def was_moving(self) -> bool:
        """Whether the job may have moved when its dumps were written: no pending op was old then.

        Only devices have ops in their queues all the time, and only files that were written right
        after their newest op tell; a copy has a later time. What was normal before tells how old
        an op in the queue may be, where hosts run far ahead.
        """
        table = self.table
        is_from_files = self.evidence.incident.kind == "files"
        if not is_from_files or self.waiting_by_stack or self.exceptions_by_rank:
            return False
        if not self.waits or not self.device_ranks:
            return False
        written_ns = {dump.rank: dump.modified_ns for dump in table.dumps}
        usual_s = min(find_longest_wait(table) / _NS_PER_S, self.policy.longest_queue_s)
        ages_s = [
            (written_ns[rank] - int(table.created_ns[row])) / _NS_PER_S
            for rank, row in find_oldest(table).items()
        ]
        limit_s = self.policy.moving_dump_s + usual_s
        return bool(ages_s) and -self.policy.clock_slack_s <= min(ages_s) <= max(ages_s) < limit_s

    @property
    def has_moved_again(self) -> bool:
        """Whether the job went on later: it was not stuck, its ranks only waited."""
        return self.evidence.incident.closed_after_s is not None

    @cached_property
    def is_still(self) -> bool:
        """Whether no main thread moved over several samples, although somebody waits."""
        resting = [self.activities[rank] for rank in self.waiting_by_stack - self.recorded_ranks]
        if resting and all(0 < look.span_s <= look.asleep_s for look in resting):
            # Whatever those do that they wait for.
            return True
        if any(look.woke for look in resting):
            return False
        looks = [self.activities[rank] for rank in self.samples_by_rank]
        is_silent = any(find_silence(one) for one in self.processes_by_rank.values())
        return (
            (bool(self.waiting) or is_silent)
            and min((look.samples for look in looks), default=0) > 1
            and not any(look.function_moves for look in looks)
        )

    def has_rhythm(self, rank: int) -> bool:
        """Tell whether training had found its rhythm: a step was made, or call sites repeat."""
        beat = self.beats_by_rank.get(rank)
        if beat is not None and beat.optimizer_steps:
            return True
        table = self.table
        own = slice_rank(table, rank)
        sites, created_ns = table.site[own], table.created_ns[own]
        for site in np.unique(sites).tolist():
            times_ns = created_ns[sites == site]
            # Loops that send parameters around before training repeat a site much faster.
            if len(times_ns) >= self.policy.rhythm_uses and (
                not times_ns[0] or np.mean(np.diff(times_ns)) >= self.policy.rhythm_gap_ns
            ):
                return True
        return False
