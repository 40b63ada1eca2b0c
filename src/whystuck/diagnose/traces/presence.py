"""What the presence of traces means for the verdict."""

from __future__ import annotations

from whystuck.evidence.model import Evidence


def is_only_traces(evidence: Evidence) -> bool:
    """Tell whether traces are all that is known: whether the job stands still is not asked then."""
    others = (
        evidence.collectives,
        evidence.ops,
        evidence.stacks,
        evidence.processes,
        evidence.beats,
        evidence.exits,
        evidence.exceptions,
        evidence.fatals,
        evidence.inspections,
    )
    has_others = any(len(table) for table in others) or bool(evidence.logs.files)
    return bool(evidence.traces) and not has_others and evidence.incident.kind == "files"


def list_traced_ranks(evidence: Evidence) -> frozenset[int]:
    """List the ranks that have a trace."""
    return frozenset(header.rank for header in evidence.traces.ranks if header.rank >= 0)
