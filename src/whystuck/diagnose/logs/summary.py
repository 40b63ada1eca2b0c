"""What a report shows of logs beside its findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose.logs.cases.next_step import choose_next
from whystuck.diagnose.logs.records import Timekeeper, order_records
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence, Finding, Severity
from whystuck.evidence.logs.report import ClockOffset, FirstLine, LogRecord, LogSummary, UnknownLine
from whystuck.evidence.ranks import format_ranks

_MAX_FIRST = 100
_MAX_UNKNOWN = 50
_MAX_TEXT = 300
_NS_PER_S = 1e9
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+")


def summarize_logs(view: LogView, findings: Sequence[Finding]) -> LogSummary:
    """Sum up what logs tell.

    Args:
        view: The logs.
        findings: Those of the report, the root cause first.

    Returns:
        The summary; an empty one when there are no logs.
    """
    logs = view.evidence.logs
    if not logs.files:
        return LogSummary()
    records, keeper = order_records(view, findings)
    first = _fold_first(records)[:_MAX_FIRST]
    return LogSummary(
        # A log with several attempts is there several times.
        files=len({file.artifact for file in logs.files}),
        bytes=sum({file.artifact: file.size_bytes for file in logs.files}.values()),
        attempts=logs.attempts,
        records=sum(record.role != "context" for record in records),
        first=first,
        unknown=[
            UnknownLine(
                template=cluster.template[:_MAX_TEXT],
                sample=cluster.sample[:_MAX_TEXT],
                artifact=cluster.artifact,
                row=cluster.row,
                count=cluster.count,
                ranks=format_ranks(cluster.ranks - {-1}),
            )
            for cluster in logs.clusters[:_MAX_UNKNOWN]
        ],
        clocks=_tell_clocks(keeper),
        # Only where times of several logs are put in an order.
        unmatched_clocks=keeper.unmatched
        if len({line.artifact for line in first if line.time}) > 1
        else [],
        next_command="" if _is_decided(findings) else choose_next(view),
    )


def _is_decided(findings: Sequence[Finding]) -> bool:
    return any(
        one.severity is not Severity.NOTE and one.confidence is not Confidence.POSSIBLE
        for one in findings
    )


def _fold_first(records: Sequence[LogRecord]) -> list[FirstLine]:
    """Put the first errors of ranks together that are of one kind."""
    first: dict[tuple[str, object], LogRecord] = {}
    last_attempt = max((record.attempt for record in records), default=0)
    for record in records:
        # What nobody knows has a list of its own.
        if record.role != "context" and record.kind != "unknown" and record.attempt == last_attempt:
            owner = ("rank", record.rank) if record.rank >= 0 else ("", _name_owner(record))
            first.setdefault(owner, record)
            if record.is_cause:
                # What the finding rests on is shown, whatever else its rank said before.
                first.setdefault(("cause", (record.artifact, record.row)), record)
    folded: dict[object, list[LogRecord]] = {}
    for record in dict.fromkeys(first.values()):
        folded.setdefault(_name_kind(record), []).append(record)
    place = {id(record): number for number, record in enumerate(records)}
    groups = sorted(folded.values(), key=lambda group: min(place[id(one)] for one in group))
    return [_make_first(group) for group in groups]


def _name_owner(record: LogRecord) -> str:
    return record.node or record.artifact


def _name_kind(record: LogRecord) -> object:
    owner = "" if record.rank >= 0 else _name_owner(record)
    if record.signature:
        return owner, record.kind, record.signature
    return owner, record.kind, _NUMBER.sub("#", record.text[:_MAX_TEXT])


def _make_first(group: Sequence[LogRecord]) -> FirstLine:
    # What the finding rests on stands for the others; else the earliest does.
    shown = next((record for record in group if record.is_cause), group[0])
    return FirstLine(
        ranks=format_ranks({record.rank for record in group} - {-1}),
        node=shown.node if len({record.node for record in group}) == 1 else "",
        time=shown.time,
        artifact=shown.artifact,
        row=shown.row,
        signature=shown.signature,
        role=shown.role,
        text=shown.text[:_MAX_TEXT],
        is_cause=shown.is_cause,
    )


def _tell_clocks(keeper: Timekeeper) -> list[ClockOffset]:
    return [
        ClockOffset(
            clock=clock,
            reference=keeper.reference,
            ahead_s=round(offset.ns / _NS_PER_S, 3),
            error_s=round(offset.error_ns / _NS_PER_S, 3),
        )
        for clock, offset in keeper.offsets.items()
        if abs(offset.ns) > offset.error_ns
    ]
