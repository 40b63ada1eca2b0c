"""What whystuck says: findings, gaps, coverage and the report that holds them.

The structures here are the public JSON: a report is what ``msgspec.json.encode`` makes of
:class:`Report`, and its schema is generated from these classes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from whystuck.evidence.logs.report import LogSummary
from whystuck.evidence.nodes.checks import CheckRow
from whystuck.evidence.sections import (
    Communication,
    ExecutedPath,
    JobInfo,
    StackNode,
    Timeline,
    ValueRow,
)
from whystuck.evidence.traces.report import TraceOverview

SCHEMA_VERSION = 1


class Severity(StrEnum):
    """How much a finding matters; ``ERROR`` fails a command by default."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Confidence(StrEnum):
    """How sure a finding is. A culprit that is only possible is a warning, not an error."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Verdict(StrEnum):
    """The one word for the state of the job."""

    HEALTHY = "healthy"
    WAITING = "waiting"
    STUCK = "stuck"
    SLOW = "slow"
    CRASHED = "crashed"
    DIVERGED = "diverged"
    UNFIT = "unfit"
    INCONCLUSIVE = "inconclusive"


class Place(msgspec.Struct, frozen=True):
    """A line of source that one rank is at, or has passed."""

    rank: int
    file: str
    line: int
    function: str


class Citation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fact, and the artifact (path inside the evidence, row in it) where it can be checked."""

    text: str
    artifact: str = ""
    row: int | None = None


class Culprits(msgspec.Struct, frozen=True):
    """Whom a finding names: ranks, nodes and process groups."""

    ranks: list[int] = []
    nodes: list[str] = []
    groups: list[str] = []


class Victims(msgspec.Struct, frozen=True):
    """Who only suffers from it, as a rank set such as ``1-3``."""

    ranks: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with whom it names, where, why we say so, and what to do about it.

    ``details`` has fixed keys per code (documented on the page of the rule); ``measures`` holds
    figures whose unit is in their name.
    """

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    summary: str
    culprits: Culprits = Culprits()
    victims: Victims = Victims()
    where: list[Place] = []
    because: list[Citation] = []
    details: dict[str, Any] = {}
    ruled_out: list[str] = []
    remedies: list[str] = []
    measures: dict[str, float] = {}


class Gap(msgspec.Struct, frozen=True):
    """Something that is missing from the evidence, and why."""

    rank: int | None
    what: str
    reason: str


class Coverage(msgspec.Struct, frozen=True):
    """How much of the job the evidence covers."""

    ranks_expected: int
    ranks_seen: int
    sources: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. The first finding is the root cause.

    ``job`` is which job it is about, null for evidence that whystuck did not take itself.
    ``stacks`` is the merged stack tree of all ranks (outermost frame first); ``timeline`` are the
    ops around the place where ranks part or wait, group by group; ``communication`` is what the
    ops cost, where op logs tell; ``logs`` is what logs tell beside the findings; ``executed`` are
    the last executed lines of threads, where the job was run with ``--trace-lines``; ``traces`` is
    how much Kineto traces cover, and where the time of the steps went; ``values`` is what was seen
    in the tensors of ops, where the job was run with ``--inspect``; ``checks`` are the checks of
    nodes, in the order in which they are listed; ``context`` are facts for the headline, e.g.
    ``stalled_s``, ``closed``, ``end_class``.
    """

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    findings: list[Finding] = []
    gaps: list[Gap] = []
    coverage: Coverage = Coverage(0, 0)
    stacks: list[StackNode] = []
    timeline: list[Timeline] = []
    communication: Communication = Communication()
    logs: LogSummary = LogSummary()
    executed: list[ExecutedPath] = []
    traces: TraceOverview = TraceOverview()
    job: JobInfo | None = None
    values: list[ValueRow] = []
    checks: list[CheckRow] = []
    context: dict[str, Any] = {}
