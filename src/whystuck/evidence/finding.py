"""What whystuck says: findings, gaps, coverage and the report that holds them.

The structures here are the public JSON: a report is what ``msgspec.json.encode`` makes of
:class:`Report`, and its schema is generated from these classes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

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


class StackNode(msgspec.Struct, frozen=True):
    """A node of the merged stack tree: a frame, and the ranks whose main thread is in it."""

    function: str
    file: str
    line: int
    ranks: str
    is_user_code: bool
    children: list[StackNode] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. The first finding is the root cause.

    ``stacks`` is the merged stack tree of all ranks (outermost frame first); ``context`` are
    facts for the headline, e.g. ``stalled_s``, ``closed``, ``launcher``.
    """

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    findings: list[Finding] = []
    gaps: list[Gap] = []
    coverage: Coverage = Coverage(0, 0)
    stacks: list[StackNode] = []
    context: dict[str, Any] = {}
