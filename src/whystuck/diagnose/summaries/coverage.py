"""How much of a job the evidence covers."""

from __future__ import annotations

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.traces.presence import list_traced_ranks
from whystuck.evidence.finding import Coverage
from whystuck.evidence.model import Evidence


def measure_coverage(scene: Scene) -> Coverage:
    """Count the ranks of the job and those that are seen, and name the sources with rows."""
    evidence = scene.evidence
    tables = {
        "flight recorder": evidence.recorded_ops or _count_recorded(evidence),
        "op log": len(evidence.ops),
        "logs": len(evidence.logs.files),
        "stacks": len(evidence.stacks),
        "processes": len(evidence.processes),
        "heartbeats": len(evidence.beats),
        "exceptions": len(evidence.exceptions),
        "exits": len(evidence.exits),
        "fatal stacks": len(evidence.fatals),
        "inspection": len(evidence.inspections),
        "traces": len(evidence.traces),
        "NCCL RAS": len(evidence.ras),
        "devices": len(evidence.devices),
    }
    sources = [name for name, rows in tables.items() if rows]
    traced = list_traced_ranks(evidence)
    seen = scene.ranks.seen | traced
    expected = (
        scene.ranks.all | traced | {gap.rank for gap in evidence.gaps if gap.rank is not None}
    )
    world_size = max((header.world_size for header in evidence.traces.ranks), default=0)
    return Coverage(max(len(expected), world_size), len(seen), sources)


def _count_recorded(evidence: Evidence) -> int:
    table = evidence.collectives
    return 0 if all(dump.is_op_log for dump in table.dumps) else len(table)
