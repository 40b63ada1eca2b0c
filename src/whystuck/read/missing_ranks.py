"""Ranks that some file tells of, and those of which no file was found."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.evidence.finding import Gap
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.read import naming
from whystuck.read.collected import (
    Collected,
)


def list_missing(world_size: int, found: Collected) -> Iterator[Gap]:
    """Return a gap for each rank of which nothing was read."""
    is_merged = any(file.kind in {"merged", "agent"} for file in found.logs.files)
    if found.budget.is_spent:
        reason = "no file of this rank was read"
    elif is_merged:
        reason = "no line in the merged logs tells of it"
    else:
        reason = "no file of this rank was found"
    return naming.find_missing(world_size, find_seen(found), found.gaps, reason)


def find_seen(found: Collected) -> set[int]:
    """Return the ranks of which something was read."""
    seen = {dump.rank for table in found.tables for dump in table.dumps}
    seen |= set(found.node_by_rank) | {log.rank for log in found.ops.logs}
    seen |= {item.rank for item in found.stacks} | {item.rank for item in found.processes}
    seen |= {item.rank for item in found.beats} | {item.rank for item in found.fatals}
    seen |= {item.rank for item in found.inspections}
    seen |= {item.rank for item in found.exits} | {item.rank for item in found.exceptions}
    seen |= {rank for file in found.logs.files for rank in file.ranks}
    return seen - {UNKNOWN_RANK}
