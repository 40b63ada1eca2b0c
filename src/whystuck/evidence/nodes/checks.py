"""What a check of a node found: whether it is fit to train, and by which figures."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

CHECKS_FILE = "checks.json"


class Outcome(StrEnum):
    """How a check ended. ``INCOMPLETE`` is not ok: what it would have found is unknown."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    INCOMPLETE = "incomplete"


class CheckProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with a node.

    Attributes:
        code: The code of the catalogue.
        severity: ``error`` for what makes jobs fail or compute wrongly.
        text: One sentence, with the figure and the threshold.
        subject: What it is about, e.g. a mount or an interface; empty for the node.
        confidence: How sure it is.
        because: The facts it rests on.
        remedies: What to do; the advice of the rule when empty.
        measures: Figures and thresholds, with their unit in the name.
        details: The fixed keys of the code.
        nodes: The nodes that it blames, where nodes were compared; that of the result when None.
    """

    code: str
    severity: Literal["error", "warning", "note"] = "warning"
    text: str = ""
    subject: str = ""
    confidence: Literal["certain", "likely", "possible"] = "certain"
    because: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    measures: dict[str, float] = {}
    details: dict[str, Any] = {}
    nodes: tuple[str, ...] | None = None


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one node, as reports show it.

    Attributes:
        name: The name of the check, as ``--only`` takes it.
        node: The node.
        subject: The part of the node that it is about, e.g. a path; empty for all of it.
        outcome: How it ended.
        reason: Why it was skipped, or is incomplete.
        took_s: How long it took.
        facts: What it saw, in words, by name.
        figures: What it measured, with the unit in the name.
    """

    name: str
    node: str = ""
    subject: str = ""
    outcome: Outcome = Outcome.OK
    reason: str = ""
    took_s: float = 0.0
    facts: dict[str, str] = {}
    figures: dict[str, float] = {}


class CheckResult(CheckRow, frozen=True, kw_only=True):
    """One check of one node, and what it found to be wrong.

    Attributes:
        problems: What is wrong.
        artifact: The file that tells it; empty for a check of now.
    """

    problems: tuple[CheckProblem, ...] = ()
    artifact: str = ""

    @property
    def title(self) -> str:
        """The check and what it is about, as people read it."""
        return f"{self.name} {self.subject}".rstrip()

    def to_row(self) -> CheckRow:
        """Return what reports show beside the findings."""
        names = CheckRow.__struct_fields__
        return CheckRow(**{name: getattr(self, name) for name in names})


class ChecksRecord(msgspec.Struct, kw_only=True):
    """``checks.json``: the checks of one node at one moment."""

    node: str = ""
    taken_ns: int = 0
    results: list[CheckResult] = []
