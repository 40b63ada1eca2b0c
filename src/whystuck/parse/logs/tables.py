"""Makes the tables of evidence from what was found in all logs of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whystuck.evidence.live import ExitRecord, FatalStack, PythonException, StackSample
from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogCluster, LogEvent, Logs
from whystuck.evidence.nodes.checks import CheckResult
from whystuck.evidence.nodes.ras import RasStatus
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.boot_check import make_boot_results
from whystuck.parse.logs.blocks.stacks.ranks import make_stacks
from whystuck.parse.logs.blocks.stacks.tracebacks import Trace
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.clusters import ClusterSeen
from whystuck.parse.logs.exits import ExitSeen
from whystuck.parse.logs.facts import CallSeen
from whystuck.parse.logs.join import LogIndex
from whystuck.parse.logs.lines.lines import MAX_TEXT
from whystuck.parse.logs.lines.members import name_member
from whystuck.parse.logs.log_inputs import LogInput
from whystuck.parse.logs.overcome import find_good_end, goes_on, is_overcome, list_leaving_out
from whystuck.parse.logs.owners.known_logs import KnownLog, find_sole_ranks
from whystuck.parse.logs.owners.sole_failures import name_sole_failure
from whystuck.parse.logs.parts import EventSeen
from whystuck.parse.logs.search.scan import MAX_GROUP
from whystuck.parse.logs.shown_sources import make_sources
from whystuck.parse.logs.signatures import Signature

MAX_CLUSTERS = 1000
_RAISED = "py.exc"
# What the kernel says of the device and the process.
_KERNEL = (
    re.compile(
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+)"
        r"(?:, pid='?(?P<pid>\d+)'?)?(?:, name=(?P<comm>[^,<]+))?"
    ),
    re.compile(
        r"Killed process (?P<pid>\d+)(?: \((?P<comm>[^)]*)\))?(?:, UID \d+,? \((?P<comm2>[^)]*))?"
    ),
    re.compile(
        r"(?<![^\[\s])(?P<comm>[^\[\s]+)\[(?P<pid>\d+)\]: "
        r"segfault at .{0,200}? in (?P<lib>[^\[\s,]+)"
    ),
    re.compile(r"Sending SIGBUS to (?P<comm>[^:\s]+):(?P<pid>\d+)"),
)
_OF_LAUNCHERS = {
    "ChildFailedError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "CalledProcessError",
}
_SIGNALS = {
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Floating-point exception": 8,
}


@dataclass(frozen=True, slots=True)
class LogTable:
    """All that logs tell."""

    logs: Logs
    exceptions: tuple[PythonException, ...]
    exits: tuple[ExitRecord, ...]
    fatals: tuple[FatalStack, ...]
    stacks: tuple[StackSample, ...]
    node_of_process: Mapping[int, str]
    world_size: int
    left_out: int
    ras: tuple[RasStatus, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


def join_logs(sources: Sequence[LogInput], signatures: Sequence[Signature]) -> LogTable:
    """Join what was found in the logs of one job.

    Args:
        sources: The logs, in the order of their names.
        signatures: The table that was searched for.
    """
    index = LogIndex(sources)
    events = [event for log in index.logs for event in _make_events(index, log, signatures)]
    events += [event for log in index.logs for event in _make_calls(index, log)]
    ends = [(log, find_good_end(log, signatures)) for log in index.logs]
    exits = list(_list_exits(index, ends))
    exceptions = [item for log, end in ends for item in _make_exceptions(index, log, end)]
    events, exceptions = name_sole_failure(events, exceptions, exits)
    fatals = [item for log in index.logs for item in _make_fatals(index, log, exits)]
    stacks, nodes = make_stacks(index, events)
    attempts = max((event.attempt for event in events), default=0)
    restarts = (one for log in index.logs for _, one in log.source.part.facts.restarts)
    attempts = max([attempts, *restarts, *(log.attempt for log in index.logs)])
    clusters = sorted(_make_clusters(index), key=lambda one: (one.count, one.artifact, one.row))
    left_out = sum(source.part.left_out for source in sources)
    return LogTable(
        Logs(
            index.make_files(),
            tuple(events),
            tuple(clusters[:MAX_CLUSTERS]),
            attempts + 1,
            index.processes.list_ranks(),
            index.list_inferred(),
        ),
        tuple(exceptions),
        tuple(exits),
        tuple(fatals),
        tuple(stacks),
        nodes,
        index.world_size,
        left_out + max(0, len(clusters) - MAX_CLUSTERS),
        tuple(one.parse(src.artifact) for src in sources for one in src.part.ras),
        tuple(
            one
            for source in sources
            for one in make_boot_results(source.part.boot, artifact=source.artifact)
        ),
        make_sources(
            (one for source in sources for one in source.part.sources),
            _list_frames(stacks, exceptions),
        ),
    )


def _list_frames(
    stacks: Iterable[StackSample], exceptions: Iterable[PythonException]
) -> Iterator[Frame]:
    for sample in stacks:
        for thread in sample.threads:
            yield from thread.frames
    for item in exceptions:
        yield from item.frames


def _make_events(
    index: LogIndex, log: KnownLog, signatures: Sequence[Signature]
) -> Iterator[LogEvent]:
    told = [trace for trace in log.source.part.traces if trace.is_told]
    end, leaving_out = find_good_end(log, signatures), list_leaving_out(log, signatures)
    for seen in log.source.part.events:
        signature = signatures[seen.signature]
        if seen.line.is_kernel and signature.id == _RAISED:
            continue  # no kernel raises exceptions of Python: `LNetError: 2089:0:(...)`
        own = index.take_host(seen.line)
        line = next((one.line for one in told if _is_in(seen, one)), own)
        owner = index.find_owner(log, line, seen.row, seen.line.stamp)
        yield LogEvent(
            signature=signature.id,
            role=signature.role,
            code=signature.finding,
            kind=signature.kind,
            artifact=log.source.artifact,
            row=seen.row,
            text=own.text,
            groups=_find_groups(seen) | name_member(own),
            rank=owner.rank if owner.rank != UNKNOWN_RANK else _read_own(seen),
            node=owner.node,
            pid=owner.pid,
            attempt=owner.attempt,
            time=owner.time,
            count=seen.count,
            meaning=signature.meaning,
            action=signature.action,
            is_hardware=signature.is_hardware,
            severity=signature.severity,
            is_past=seen.row < end or is_overcome(log, seen, signature, owner.rank, leaving_out),
        )


def _make_calls(index: LogIndex, log: KnownLog) -> Iterator[LogEvent]:
    """Yield the calls that NCCL prints, and rows of tables: no signature looks for them."""
    part = log.source.part
    calls: list[tuple[str, CallSeen | TabledSeen]] = [
        ("nccl.call", one) for calls in part.facts.calls.values() for one in calls
    ]
    for name, seen in (*calls, *((one.name, one) for one in part.tabled)):
        owner = index.find_owner(log, seen.line, seen.row, seen.line.stamp)
        yield LogEvent(
            signature=name,
            role="context",
            code="",
            kind=name.partition(".")[0],
            artifact=log.source.artifact,
            row=seen.row,
            text=seen.line.text[:MAX_TEXT],
            groups=seen.groups,
            rank=owner.rank if owner.rank != UNKNOWN_RANK else _read_own(seen),
            node=owner.node,
            pid=owner.pid,
            attempt=owner.attempt,
            time=owner.time,
            severity="info",
        )


def _read_own(seen: EventSeen | CallSeen | TabledSeen) -> int:
    """Return the rank that a line says it is of, where the table knows that it does."""
    own = seen.groups.get("own") or ""
    return min(int(own[:7]), MAX_RANK) if own.isdecimal() else UNKNOWN_RANK


def _is_in(seen: EventSeen, trace: Trace) -> bool:
    return trace.row <= seen.row <= trace.last_row and seen.line.rank == UNKNOWN_RANK


def _find_groups(seen: EventSeen) -> dict[str, str]:
    """Return what the pattern names, and the device and process that the kernel names."""
    if not seen.line.is_kernel and "Xid (" not in seen.line.text:
        return seen.groups
    groups = dict(seen.groups)
    for pattern in _KERNEL:
        if match := pattern.search(seen.line.text):
            for name, value in match.groupdict().items():
                if value:
                    groups.setdefault(name.rstrip("2"), value[:MAX_GROUP])
    return groups


def _list_exits(index: LogIndex, ends: Iterable[tuple[KnownLog, int]]) -> Iterator[ExitRecord]:
    """Yield the ends of processes in all logs, but those before a good end of their job."""
    sole = find_sole_ranks(index.logs)
    for log, end in ends:
        yield from (one for one in _make_exits(index, log, sole) if not 0 < one.row < end)


def _make_exits(index: LogIndex, log: KnownLog, sole: Mapping[str, int]) -> Iterator[ExitRecord]:
    """Yield the ends of processes; ``sole`` has the rank of each host that has one alone."""
    known: dict[tuple[int, int, int | None, int | None, int], ExitRecord] = {}
    for seen in log.source.part.exits:
        record = _make_exit(index, log, seen, sole)
        key = (record.rank, record.pid, record.code, record.signal, record.attempt)
        if record.rank == UNKNOWN_RANK and not record.pid:
            yield record
        elif key not in known:
            # The agent and its table tell the same end twice.
            known[key] = record
        elif not known[key].node and record.node:
            known[key] = replace(known[key], node=record.node)
    yield from known.values()


def _make_exit(
    index: LogIndex, log: KnownLog, seen: ExitSeen, sole: Mapping[str, int]
) -> ExitRecord:
    host = seen.line.text.partition(": ")[0]
    told = host if host in sole else index.take_host(seen.line).node
    line = replace(seen.line, node=seen.node or seen.line.node or told)
    owner = index.find_owner(log, line, seen.row, seen.stamp)
    rank = seen.rank
    if rank == UNKNOWN_RANK and seen.task != UNKNOWN_RANK and log.tasks_are_ranks:
        rank = seen.task
    if rank == UNKNOWN_RANK and seen.pid:
        rank = index.rank_of_pid(owner.node, seen.pid)
    if rank == UNKNOWN_RANK and seen.local >= 0:
        rank = index.rank_of_local(owner.node, seen.local, log)
    if rank == UNKNOWN_RANK and seen.node:
        rank = index.rank_of_node(seen.node)
    rank = sole.get(line.node, rank) if rank == UNKNOWN_RANK else rank
    return ExitRecord(
        rank=rank,
        pid=seen.pid,
        code=seen.code,
        signal=seen.signal,
        after_launcher_kill=seen.after_kill,
        source="launcher log",
        artifact=log.source.artifact,
        row=seen.row,
        node=seen.node or index.node_by_rank.get(rank, "") or owner.node,
        attempt=owner.attempt,
        time=owner.time,
        reason=seen.reason,
    )


def _make_exceptions(index: LogIndex, log: KnownLog, end: int) -> Iterator[PythonException]:
    for trace in log.source.part.traces:
        if trace.is_ignored or trace.row < end:
            continue
        item = _make_exception(index, log, trace)
        # What a launcher raises of its own says no more than the end of the process that it tells.
        if item.rank != UNKNOWN_RANK or item.type.rpartition(".")[2] not in _OF_LAUNCHERS:
            yield item


def _make_exception(index: LogIndex, log: KnownLog, trace: Trace) -> PythonException:
    owner = index.find_owner(log, trace.line, trace.row, trace.line.stamp)
    rank = owner.rank
    if rank == UNKNOWN_RANK and trace.spawned >= 0:
        rank = trace.spawned
    return PythonException(
        rank=rank,
        type=trace.type,
        message="\n".join(trace.message).strip(),
        frames=tuple(reversed(trace.frames)),
        time_ns=0,
        is_main_thread=not trace.thread or trace.thread == "MainThread",
        thread=trace.thread,
        source="log",
        artifact=log.source.artifact,
        row=trace.row,
        node=owner.node,
        pid=owner.pid,
        attempt=owner.attempt,
        time=owner.time,
        last_row=trace.last_row,
        is_caught=goes_on(log, trace.line, rank, trace.last_row),
        origins=tuple(_make_exception(index, log, one) for one in trace.origins),
    )


def _make_fatals(
    index: LogIndex, log: KnownLog, exits: Iterable[ExitRecord]
) -> Iterator[FatalStack]:
    for seen in log.source.part.fatals:
        owner = index.find_owner(log, seen.line, seen.row, seen.line.stamp)
        rank = owner.rank
        if rank == UNKNOWN_RANK:
            # Only one process in this log ended by such a signal.
            signal = _SIGNALS.get(seen.reason, 0)
            ended = {
                record.rank
                for record in exits
                if record.artifact == log.source.artifact
                and record.signal == signal
                and record.attempt == owner.attempt
            }
            rank = ended.pop() if len(ended) == 1 else rank
        yield FatalStack(
            rank,
            seen.reason,
            tuple(seen.threads),
            log.source.artifact,
            row=seen.row,
            last_row=seen.last_row,
            site_row=seen.site_row,
            node=owner.node or index.node_by_rank.get(rank, ""),
            attempt=owner.attempt,
            time=owner.time,
        )


def _make_clusters(index: LogIndex) -> Iterator[LogCluster]:
    """Fold the clusters of all logs into one of each form."""
    found: dict[str, LogCluster] = {}
    for log in index.logs:
        for seen in log.source.part.clusters:
            cluster = _make_cluster(index, log, seen)
            known = found.get(seen.template)
            if known is None:
                found[seen.template] = cluster
            else:
                found[seen.template] = replace(
                    known, count=known.count + cluster.count, ranks=known.ranks | cluster.ranks
                )
    yield from found.values()


def _make_cluster(index: LogIndex, log: KnownLog, seen: ClusterSeen) -> LogCluster:
    owner = index.find_owner(log, seen.line, seen.row, seen.line.stamp)
    ranks = set(seen.ranks)
    if log.tasks_are_ranks:
        ranks |= seen.tasks
    if owner.rank != UNKNOWN_RANK:
        ranks.add(owner.rank)
    return LogCluster(
        template=seen.template,
        sample=seen.sample,
        artifact=log.source.artifact,
        row=seen.row,
        count=seen.count,
        ranks=frozenset(ranks),
        time=owner.time,
    )
