"""Which lines of a log did no harm: who wrote them went on, or the whole job ended well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import parse_ranks
from whystuck.parse.logs.join import MACHINES
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.owners.known_logs import KnownLog
from whystuck.parse.logs.parts import EventSeen
from whystuck.parse.logs.signatures import Signature

# Progress for so long after a line, of its rank or of any, and it did no harm; where lines have no
# times, so many lines of it.
_ON_NS, _ALL_ON_NS = 5_000_000_000, 60_000_000_000
_LINES_ON = 20
# What a rank printed before it waited may come so many lines late.
_LATE_ROWS = 4
# Kinds of trouble that programs meet and get over, as they try again with less.
_SURVIVABLE = {"gpu_oom"}
# An exception that nobody caught, as Python prints it.
_RAISED = re.compile(r"^\s{0,8}[\w.]{0,80}(?:Error|Exception|Exit)\b")
_NUMERIC, _DEPARTURE = "numeric", "departure"
# A rank that says where it is, until it makes progress.
_STILL = "progress.still"
_PASSED, _FAILED = "job.passed", "job.failed"
# How a batch system writes that a job did not end well.
_ENDS = {_FAILED, "slurm.oom", "slurm.timelimit", "slurm.preempt", "slurm.node_fail"}
# Ranks that a warning names, until they go on.
_LEAVES_OUT = {"py.left_out"}
_WARNS = {"horovod.missing": ("ranks", "ranks2")}


def find_good_end(log: KnownLog, signatures: Sequence[Signature]) -> int:
    """Find the line that says that all of the job ended well; 0 where none does.

    A list of several jobs, of which others failed, says so of none.
    """
    names = [(signatures[seen.signature].id, seen.row) for seen in log.source.part.events]
    if any(name in _ENDS for name, _ in names):
        return 0
    return max((row for name, row in names if name == _PASSED), default=0)


def list_leaving_out(log: KnownLog, signatures: Sequence[Signature]) -> frozenset[int]:
    """List the writers that say that they left something out: of these, going on is no joining."""
    events = log.source.part.events
    return frozenset(
        seen.line.writer for seen in events if signatures[seen.signature].id in _LEAVES_OUT
    )


def is_overcome(
    log: KnownLog,
    seen: EventSeen,
    signature: Signature,
    rank: int,
    leaving_out: frozenset[int] = frozenset(),
) -> bool:
    """Tell whether a known line did no harm, as later lines of its log show.

    Args:
        log: The log of the line.
        seen: The line.
        signature: What it means.
        rank: Who wrote it.
        leaving_out: Ranks that `list_leaving_out` finds.
    """
    if signature.id in _WARNS and seen.line.writer in leaving_out:
        # The line may begin with the rank that is missing, and is no line of that rank.
        return _is_over(log, seen, signature, leaving_out)
    return (
        goes_on(log, seen.line, rank, seen.row)
        or (signature.kind in _SURVIVABLE and _survives(log, seen))
        or _is_over(log, seen, signature, leaving_out)
    )


def goes_on(log: KnownLog, line: LogLine, rank: int, row: int) -> bool:
    """Tell whether who wrote a line made progress for long after it.

    Times tell best: what waits in a buffer is written below a traceback, but is older. In a log of
    several ranks that does not tell whose its lines are, others may have gone on; but no job does
    so for long without one of them, and the launcher would tell of its end.
    """
    part = log.source.part
    is_told = line.rank != UNKNOWN_RANK or line.task >= 0
    is_own = is_told or log.kind == "rank"
    writer = rank if is_told else UNKNOWN_RANK
    last = part.facts.progress.get(writer, 0)
    if line.is_previous and _runs_again(log, row):
        return True
    if log.kind in MACHINES or last <= row:
        return False
    later = part.facts.progress_times.get(writer)
    if later is not None and line.stamp is not None and later.lack == line.stamp.lack:
        is_long = later.ns - line.stamp.ns > (_ON_NS if is_own else _ALL_ON_NS)
    else:
        is_long = last > row + _LINES_ON
    ends = [*(seen.row for seen in part.exits), *(trace.row for trace in part.traces)]
    return is_long and (is_own or max(ends, default=0) <= row)


def _runs_again(log: KnownLog, row: int) -> bool:
    """Tell whether what a container printed before its last start is told above what it does now.

    Whoever makes progress: a job that was started again needs all its ranks for that.
    """
    part = log.source.part
    ends = [*(seen.row for seen in part.exits), *(trace.row for trace in part.traces)]
    return max(part.facts.progress.values(), default=0) > max(row, *ends, 0)


def _is_over(
    log: KnownLog, seen: EventSeen, signature: Signature, leaving_out: frozenset[int]
) -> bool:
    """Tell whether later lines contradict one: the loss is a number again, the rank runs."""
    facts = log.source.part.facts
    if signature.kind == _NUMERIC:
        if any(trace.row < seen.row <= trace.last_row for trace in log.source.part.traces):
            return False  # it was raised: what is shown below it is older, or of another run
        return facts.losses.get(seen.line.writer, 0) > seen.row
    if signature.id in _WARNS:
        texts = (seen.groups.get(name) or "" for name in _WARNS[signature.id])
        missing = {rank for text in texts for rank in parse_ranks(text)}
        return _all_go_on(log, missing, seen.row, leaving_out)
    is_batch = signature.id in _LEAVES_OUT and bool(seen.groups.get("batch"))
    if signature.kind != _DEPARTURE and signature.id != _STILL and not is_batch:
        return False
    named = seen.groups.get("who") or ""
    writer = int(named[:7]) if named.isdecimal() else seen.line.seat
    return facts.progress.get(writer, 0) > seen.row


def _all_go_on(log: KnownLog, ranks: Iterable[int], row: int, leaving_out: frozenset[int]) -> bool:
    """Tell whether ranks that were waited for all made progress later, or one that waited did.

    The first alone may be in something long that the others do not call; and who left out what the
    others wait in goes on without them.
    """
    part, missing = log.source.part, set(ranks)
    progress = part.facts.progress
    waited = [last for rank, last in progress.items() if rank >= 0 and rank not in missing]
    ends = [*(seen.row for seen in part.exits), *(trace.row for trace in part.traces)]
    if max(waited, default=0) > row + _LATE_ROWS and max(ends, default=0) <= row:
        return True
    told = [progress.get(rank, 0) > row for rank in missing - leaving_out]
    return bool(told) and all(told)


def _all_survive(log: KnownLog, row: int) -> bool:
    """Tell whether the job went on behind a message of a program, and nothing of it ended.

    Whose message it is does not matter then: no rank goes on for long without the others.
    """
    part = log.source.part
    last = max(part.facts.progress.values(), default=0)
    return not part.traces and not part.exits and last > row + _LATE_ROWS


def _survives(log: KnownLog, seen: EventSeen) -> bool:
    """Tell whether who wrote a line went on, and no traceback or end of it is in the log."""
    line, part = seen.line, log.source.part
    writer = line.writer
    if writer == UNKNOWN_RANK and log.kind != "rank":
        return not _RAISED.match(line.text) and _all_survive(log, seen.row)
    if part.facts.progress.get(writer, 0) <= seen.row:
        return False
    raised = any(
        log.kind == "rank" or writer in (trace.line.rank, trace.line.task) for trace in part.traces
    )
    return not raised and all(writer not in (one.rank, one.task) for one in part.exits)
