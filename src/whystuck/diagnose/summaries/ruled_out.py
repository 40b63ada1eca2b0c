"""What was looked at and is not the cause; only what the evidence really covers is listed."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.summaries.grid import make_grid
from whystuck.evidence.finding import Finding


def list_ruled_out(scene: Scene, finding: Finding, rule: type[Rule]) -> list[str]:
    """List other causes that the evidence excludes.

    Args:
        scene: The evidence and what was worked out from it.
        finding: The finding that stands.
        rule: Its rule.

    Returns:
        Short phrases, the strongest first.
    """
    if finding.code[0] == codes.CRASH:
        return _list_for_crash(scene, finding)
    return _list_for_stall(scene, finding, rule)


def _list_for_stall(scene: Scene, finding: Finding, rule: type[Rule]) -> list[str]:
    culprits = set(finding.culprits.ranks)
    phrases = []
    if scene.divergences.first is None and not rule.compares_ops and _do_ops_agree(scene):
        phrases.append("different ops, shapes or types: all ranks agree up to the last op")
    looks = [
        scene.processes.activities[rank] for rank in culprits if rank in scene.processes.activities
    ]
    known = [look for look in looks if look.state]
    is_stopped = any(look.is_stopped for look in known) or any(
        scene.processes.find_stopped_workers(rank) for rank in culprits
    )
    if known and len(known) == len(culprits) and not is_stopped:
        phrases.append("stopped process: the kernel shows it running or asleep")
    if culprits and culprits <= set(scene.stacks.positions) and not culprits & scene.exits.dead:
        phrases.append("dead process: its stack was read")
    beats = [
        scene.processes.beats_by_rank[rank]
        for rank in culprits
        if rank in scene.processes.beats_by_rank
    ]
    if beats and len(beats) == len(culprits) and not any(beat.stale for beat in beats):
        phrases.append("held GIL: the heartbeat goes on")
    return phrases


def _do_ops_agree(scene: Scene) -> bool:
    """Return whether there are recorded ops, and nothing shows that members of a group differ."""
    if not scene.ops.groups or scene.logs.wire_complaints:
        return False
    groups = (group for group in scene.ops.groups if len(group.rows_by_rank) > 1)
    return not any(len(make_grid(scene.ops.table, group).mismatches) for group in groups)


def _list_for_crash(scene: Scene, finding: Finding) -> list[str]:
    phrases = []
    if scene.exceptions.cut_ranks and finding.code != codes.PEER_LOST:
        phrases.append("lost connections of the other ranks: they follow from the end of a peer")
    if not scene.divergences.is_wire_mismatch and _do_ops_agree(scene):
        phrases.append("different shapes or types: the recorded ops agree")
    if any(item.after_launcher_kill for item in scene.exits.by_rank.values()):
        phrases.append("signals to the other ranks: the launcher sent them while cleaning up")
    return phrases
