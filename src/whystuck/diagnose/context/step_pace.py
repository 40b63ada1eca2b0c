"""How the ranks of a job keep step: who is late in each step, and how long ranks wait in ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.waits import NO_ROW
from whystuck.diagnose.algorithms.times.communication import measure_communication
from whystuck.diagnose.algorithms.times.lateness import Late, find_late
from whystuck.diagnose.algorithms.times.nccl_times import add_nccl_times
from whystuck.diagnose.algorithms.times.own_times import Rounds, measure_own_times
from whystuck.diagnose.context.shared_wait import SharedWait, find_shared_wait
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Communication

if TYPE_CHECKING:
    from whystuck.diagnose.context.scene import Scene

_NS_PER_S = 1e9


class Pace:
    """How ranks keep step, as far as the job went on. Everything is computed on first use."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @cached_property
    def communication(self) -> Communication:
        """What ops cost, of any job, with what NCCL's inspector tells."""
        evidence = self._scene.evidence
        return add_nccl_times(self._logged, evidence.nccl_logs, evidence.ops)

    @cached_property
    def _logged(self) -> Communication:
        """What ops cost, by the op logs alone."""
        return measure_communication(self._scene.evidence.ops)

    @cached_property
    def late_ranks(self) -> tuple[Late, ...]:
        """Ranks that their peers wait for again and again."""
        scene = self._scene
        if not self._is_known:
            return ()
        return find_late(scene.ops.table, scene.ops.groups, self._rounds, scene.ops.device_ranks)

    @cached_property
    def shared_wait(self) -> SharedWait | None:
        """How long ranks wait in ops, where that is long and no rank is late throughout."""
        scene = self._scene
        if scene.evidence.incident.kind == "stall" or not self._is_known or self.late_ranks:
            return None
        return find_shared_wait(self._logged, self._rounds, scene.policy)

    @cached_property
    def _rounds(self) -> tuple[Rounds, ...]:
        """What ranks take by themselves between the ops of groups whose ops run on hosts."""
        scene = self._scene
        nodes = scene.evidence.topology.node_by_rank
        on_host = [
            one for one in scene.ops.groups if scene.ops.device_ranks.isdisjoint(one.rows_by_rank)
        ]
        return measure_own_times(scene.ops.table, on_host, nodes)

    @cached_property
    def _is_known(self) -> bool:
        """Whether the job went on until it was over, or somebody ended it, or goes on now."""
        scene = self._scene
        if self._ended_outside_ns and not (
            scene.exits.root_exceptions or scene.exits.crash_signals
        ):
            return not self._was_stuck_before(self._ended_outside_ns)
        if scene.movement.is_stalled and scene.waits.waiting:
            return False
        return not (scene.exits.is_crash or scene.divergences.first or scene.exits.failed_ranks)

    @cached_property
    def _ended_outside_ns(self) -> int:
        """When somebody ended the job, 0 when nobody did."""
        evidence = self._scene.evidence
        if evidence.incident.outside_signal:
            return evidence.incident.outside_ns
        if all(one.code != codes.PREEMPTED for one in self._scene.story.roots):
            return 0
        return min((one.ended_ns for one in evidence.exits if one.ended_ns), default=0)

    def _was_stuck_before(self, time_ns: int) -> bool:
        """Return whether ranks waited for long at a time; what they do after it is its result."""
        scene = self._scene
        begun_ns = [
            int(scene.ops.table.created_ns[one.row])
            for one in scene.waits.pending
            if one.row != NO_ROW
        ]
        waited_s = (time_ns - min(begun_ns, default=time_ns)) / _NS_PER_S
        return waited_s >= scene.policy.snapshot_stall_s
