"""What a report tells of logs beside its findings: who said what first, and what nobody knows."""

from __future__ import annotations

import msgspec


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One error that a log holds: a known line, a traceback, the end of a process, an unknown line.

    ``time`` is when, by the clock that most logs go by: ``shift_ns`` was added to what the log
    says. It ends with ``Z`` where the zone is known; it is empty, and ``time_ns`` null, where
    nothing tells. ``kind`` is ``line``, ``exception``, ``exit`` or ``unknown``; the columns from
    ``signature`` to ``is_hardware`` are those of the table of known lines. ``count`` is how many
    lines are alike. ``is_first`` marks the first error of all, ``is_cause`` those that the first
    finding rests on. ``rank`` is -1 and ``row`` null where nothing tells.
    """

    time: str = ""
    time_ns: int | None = None
    shift_ns: int = 0
    rank: int = -1
    node: str = ""
    pid: int = 0
    attempt: int = 0
    artifact: str = ""
    row: int | None = None
    kind: str = "line"
    signature: str = ""
    trouble: str = ""
    role: str = ""
    code: str = ""
    severity: str = ""
    is_hardware: str = ""
    count: int = 1
    is_first: bool = False
    is_cause: bool = False
    text: str = ""


class FirstLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first error of some ranks that begin with the same kind of line, or of one host.

    Time and place are those of the first of them; ``ranks`` is a set such as ``0-7``, empty for
    what no rank wrote. ``is_cause`` marks what the first finding rests on.
    """

    ranks: str
    node: str
    time: str
    artifact: str
    row: int | None
    signature: str
    role: str
    text: str
    is_cause: bool = False


class UnknownLine(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that look like errors and that no signature knows; ``<*>`` stands for what differs."""

    template: str
    sample: str
    artifact: str
    row: int
    count: int
    ranks: str


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a clock is ahead of that of ``reference``, and how sure that is, in seconds."""

    clock: str
    reference: str
    ahead_s: float
    error_s: float


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the logs tell beside the findings.

    ``records`` is the number of errors, ``attempts`` that of the launcher's starts. ``first`` are
    the first errors of all ranks and hosts, the earliest first, those with the same kind of line
    together. ``clocks`` are the clocks that differ by more than is known of them, and
    ``unmatched_clocks`` those that nothing compares with the others. ``next_command`` is the one
    command that would decide where the logs do not, with what it is for; empty where none is known.
    """

    files: int = 0
    bytes: int = 0
    attempts: int = 1
    records: int = 0
    first: list[FirstLine] = []
    unknown: list[UnknownLine] = []
    clocks: list[ClockOffset] = []
    unmatched_clocks: list[str] = []
    next_command: str = ""
