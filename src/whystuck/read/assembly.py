"""From all that was read to one `Evidence`: where records and logs tell of the same, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace

from whystuck.evidence.finding import Gap
from whystuck.evidence.live import ExitRecord
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.model import Evidence, Incident, Topology
from whystuck.evidence.ranks import MAX_RANK
from whystuck.evidence.records import IncidentRecord
from whystuck.parse.dumps.merge import merge_tables
from whystuck.parse.ops.join import join_op_logs
from whystuck.read import naming
from whystuck.read.collected import Collected


def assemble(found: Collected, record: IncidentRecord | None) -> Evidence:
    """Make the evidence of what was read; `record` tells why it was taken, when that is known."""
    _prefer_records(found)
    merged = merge_tables(found.tables)
    joined = join_op_logs(merged.collectives, found.ops)
    members = {**merged.members, **joined.members}
    told: dict[str, set[int]] = defaultdict(set)
    for name, ranks in found.groups:
        told[name].update(ranks)
    members |= {name: members.get(name, frozenset()) | ranks for name, ranks in told.items()}
    world_size = record.world_size if record else 0
    if not world_size and members and record is None:
        world_size = max(max(ranks, default=-1) for ranks in members.values()) + 1
    if not world_size and record is None:
        world_size = max(found.world_of_logs, max(_find_seen(found), default=-1) + 1)
    if not 0 <= world_size <= MAX_RANK + 1:
        found.gaps.append(Gap(None, "world size", f"{world_size} ranks are more than any job has"))
        world_size = 0
    return Evidence(
        topology=Topology(world_size, found.node_by_rank, members),
        incident=_make_incident(record),
        collectives=joined.collectives,
        ops=found.ops,
        marks=found.marks,
        recorded_ops=len(merged.collectives),
        logs=found.logs,
        traces=found.traces,
        sources=found.sources,
        gaps=(*found.gaps, *joined.gaps, *_list_missing(world_size, found)),
        is_partly_read=found.budget.is_spent,
        **found.list_rows(),
    )


def _make_incident(record: IncidentRecord | None) -> Incident:
    if record is None:
        return Incident()
    names = {one.name for one in fields(Incident)} & set(record.__struct_fields__)
    incident = Incident(**{name: getattr(record, name) for name in names})
    killed_ns = record.job.killed_ns if record.job else 0
    if record.kind == "stall":
        # Evidence of a stall is older than whatever ended the job.
        return replace(incident, outside_signal=0, outside_ns=0, command_exit=None)
    return replace(incident, killed_ns=killed_ns)


def _prefer_records(found: Collected) -> None:
    """Drop what logs tell of a rank that has a record of its own; drop samples out of order."""
    recorded = {item.rank for item in found.exceptions if item.source != "log"}
    found.exceptions = [
        item for item in found.exceptions if item.source != "log" or item.rank not in recorded
    ]
    # A launcher repeats what its ranks print; without a rank it adds nothing.
    told = {(item.type, item.message) for item in found.exceptions if item.rank != UNKNOWN_RANK}
    found.exceptions = [
        item
        for item in found.exceptions
        if item.rank != UNKNOWN_RANK or (item.type, item.message) not in told
    ]
    found.exits = _join_exits(found.exits)
    found.stacks.sort(key=lambda sample: (sample.rank, sample.worker, sample.pid, sample.index))


def _join_exits(exits: list[ExitRecord]) -> list[ExitRecord]:
    """Drop what launchers say of ends that were seen; let them say how others ended."""
    told = [item for item in exits if item.source == "launcher log"]
    by_rank = {item.rank: item for item in told if item.rank != UNKNOWN_RANK}
    by_pid = {item.pid: item for item in told if item.rank == UNKNOWN_RANK and item.pid}
    joined, known = [], set()
    for item in exits:
        if item.source != "launcher log":
            named, numbered = by_rank.get(item.rank), by_pid.get(item.pid)
            known |= {id(named), id(numbered)}
            word = named or numbered
            is_silent = item.code is None and item.signal is None
            joined.append(_complete_exit(item, word) if word and is_silent else item)
    ended = {item.rank for item in joined}
    return [*joined, *(one for one in told if id(one) not in known and one.rank not in ended)]


def _complete_exit(item: ExitRecord, word: ExitRecord) -> ExitRecord:
    return replace(item, code=word.code, signal=word.signal, time=item.time or word.time)


def _list_missing(world_size: int, found: Collected) -> Iterator[Gap]:
    """Return a gap for each rank of which nothing was read."""
    is_merged = any(file.kind in {"merged", "agent"} for file in found.logs.files)
    if found.budget.is_spent:
        reason = "no file of this rank was read"
    elif is_merged:
        reason = "no line in the merged logs tells of it"
    else:
        reason = "no file of this rank was found"
    return naming.find_missing(world_size, _find_seen(found), found.gaps, reason)


def _find_seen(found: Collected) -> set[int]:
    """Return the ranks of which something was read."""
    seen = {dump.rank for table in found.tables for dump in table.dumps}
    seen |= set(found.node_by_rank) | {log.rank for log in found.ops.logs}
    seen |= {item.rank for item in found.stacks} | {item.rank for item in found.processes}
    seen |= {item.rank for item in found.beats} | {item.rank for item in found.fatals}
    seen |= {item.rank for item in found.inspections}
    seen |= {item.rank for item in found.exits} | {item.rank for item in found.exceptions}
    seen |= {rank for file in found.logs.files for rank in file.ranks}
    return seen - {UNKNOWN_RANK}
