"""How the ranks of a job keep step: who is late in each step, and how long ranks wait in ops."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.waits import NO_ROW
from whystuck.diagnose.algorithms.times.communication import measure_communication
from whystuck.diagnose.algorithms.times.lateness import Late, find_late, is_late_itself
from whystuck.diagnose.algorithms.times.nccl_times import add_nccl_times
from whystuck.diagnose.algorithms.times.own_times import Rounds, measure_own_times
from whystuck.diagnose.algorithms.transfers.flows import list_hosts, measure_flows
from whystuck.diagnose.algorithms.transfers.slow_links import SlowLink, find_slow_link
from whystuck.diagnose.context.cpu_facts import Starved, find_starved
from whystuck.diagnose.context.divergences import Divergences
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.logs import Logs
from whystuck.diagnose.context.facts.movement import Movement
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.context.garbage_facts import Pausing, find_pausing
from whystuck.diagnose.context.job_pace import JobSlowdown, find_job_slowdown
from whystuck.diagnose.context.phase_facts import StepMarks
from whystuck.diagnose.context.shared_wait import SharedWait, find_shared_wait
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.marks import slice_ranks
from whystuck.evidence.sections import Communication

_NS_PER_S = 1e9


@dataclass(frozen=True, eq=False, repr=False)
class Pace:
    """How ranks keep step, as far as the job went on."""

    evidence: Evidence
    policy: Policy
    logs: Logs
    ops: Ops
    exits: Exits
    waits: Waits
    movement: Movement
    divergences: Divergences

    @cached_property
    def communication(self) -> Communication:
        """What ops cost, of any job, with what NCCL's inspector tells."""
        evidence = self.evidence
        return add_nccl_times(self._logged, evidence.nccl_logs, evidence.ops)

    @cached_property
    def _logged(self) -> Communication:
        """What ops cost, by the op logs alone."""
        return measure_communication(self.evidence.ops)

    @cached_property
    def late_ranks(self) -> tuple[Late, ...]:
        """Ranks that their peers wait for again and again, not for what comes over a slow link."""
        on_hosts = [one for one in self._seen_late if self.ops.device_ranks.isdisjoint(one.ranks)]
        if not on_hosts or not self._has_links:
            return self._seen_late
        apart = self._measure_own_times(leaves_out_transfers=True)
        return tuple(
            late
            for late in self._seen_late
            if late not in on_hosts or is_late_itself(late, self._rounds, apart)
        )

    @cached_property
    def _seen_late(self) -> tuple[Late, ...]:
        """Ranks that come last again and again, for whatever reason."""
        if not self.is_known:
            return ()
        return find_late(self.ops.table, self.ops.groups, self._rounds, self.ops.device_ranks)

    @cached_property
    def slow_link(self) -> SlowLink | None:
        """The link over which transfers take longer than elsewhere, or than before."""
        # Ranks that do not get the processor are slow to pass on what they get.
        if not self._has_links or not self.is_known or self.starved is not None:
            return None
        return find_slow_link(measure_flows(self.evidence.ops), self.hosts)

    @cached_property
    def hosts(self) -> dict[int, str]:
        """The network stack of each rank: ranks of one have no link between them."""
        return list_hosts(self.evidence.ops)

    @property
    def _has_links(self) -> bool:
        return len(set(self.hosts.values())) > 1

    def find_slow_node(self, late: Late) -> str | None:
        """Return the node of several ranks that are late, if they are half of its ranks or more."""
        node_by_rank = self.evidence.topology.node_by_rank
        nodes = {node_by_rank.get(rank) for rank in late.group.members}
        mine = {node_by_rank.get(rank) for rank in late.ranks}
        (node, *others) = mine
        if len(late.ranks) == 1 or others or node is None or len(nodes) == 1:
            return None
        here = [rank for rank in late.group.members if node_by_rank.get(rank) == node]
        return node if 2 * len(late.ranks) >= len(here) else None

    @cached_property
    def step_marks(self) -> StepMarks:
        """What the marks of steps tell."""
        seen = frozenset(slice_ranks(self.evidence.marks)) | frozenset(self.ops.recorded_ranks)
        return StepMarks(self.evidence.marks, self.ops.table, seen)

    @cached_property
    def starved(self) -> Starved | None:
        """Which ranks do not get the processor, late ones first."""
        if not self.is_known:
            return None
        return find_starved(self.evidence.cpu, self._seen_late, self.ops.table)

    @cached_property
    def pausing(self) -> tuple[Pausing, ...]:
        """Which ranks collect garbage for so long that it is what others wait for."""
        if not self.is_known or not len(self.ops.table):
            return ()
        begin_ns = int(self.ops.table.created_ns.min())
        return find_pausing(self.evidence.garbage, begin_ns, self._seen_late, self.shared_wait)

    @cached_property
    def slowdown(self) -> JobSlowdown | None:
        """Since when all steps take longer, where no rank is late throughout."""
        if not self.is_known or self.late_ranks:
            return None
        return find_job_slowdown(self.ops.table, self._rounds)

    @cached_property
    def shared_wait(self) -> SharedWait | None:
        """How long ranks wait in ops, where that is long and no rank is late throughout."""
        if self.evidence.incident.kind == "stall" or not self.is_known or self.late_ranks:
            return None
        return find_shared_wait(self._logged, self._rounds, self.policy)

    @cached_property
    def _rounds(self) -> tuple[Rounds, ...]:
        """What ranks take by themselves between the ops of groups whose ops run on hosts."""
        return self._measure_own_times()

    def _measure_own_times(self, *, leaves_out_transfers: bool = False) -> tuple[Rounds, ...]:
        nodes = self.evidence.topology.node_by_rank
        on_host = [
            one for one in self.ops.groups if self.ops.device_ranks.isdisjoint(one.rows_by_rank)
        ]
        return measure_own_times(
            self.ops.table, on_host, nodes, leaves_out_transfers=leaves_out_transfers
        )

    @cached_property
    def is_known(self) -> bool:
        """Whether the job went on until it was over, or somebody ended it, or goes on now."""
        if self.evidence.incident.kind == "slow":
            return True
        if self._ended_outside_ns and not (self.exits.root_exceptions or self.exits.crash_signals):
            return not self._was_stuck_before(self._ended_outside_ns)
        if self.movement.is_stalled and self.waits.waiting:
            return False
        return not (self.exits.is_crash or self.divergences.first or self.exits.failed_ranks)

    @cached_property
    def _ended_outside_ns(self) -> int:
        """When somebody ended the job, 0 when nobody did."""
        evidence = self.evidence
        if evidence.incident.outside_signal:
            return evidence.incident.outside_ns
        if all(one.code != codes.PREEMPTED for one in self.logs.story.roots):
            return 0
        return min((one.ended_ns for one in evidence.exits if one.ended_ns), default=0)

    def _was_stuck_before(self, time_ns: int) -> bool:
        """Return whether ranks waited for long at a time; what they do after it is its result."""
        begun_ns = [
            int(self.ops.table.created_ns[one.row])
            for one in self.waits.pending
            if one.row != NO_ROW
        ]
        waited_s = (time_ns - min(begun_ns, default=time_ns)) / _NS_PER_S
        return waited_s >= self.policy.snapshot_stall_s
