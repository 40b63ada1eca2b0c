"""What a check is: what it needs, what it measures, and when that is a problem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.policy import CheckPolicy
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_WORST = {"error": Outcome.FAILED, "warning": Outcome.WARNING}


@dataclass(frozen=True)
class Context:
    """What checks are told.

    Attributes:
        policy: The thresholds.
        node: The name of this node.
        disks: The paths that are written to; none are touched by who makes the context.
        pythons: The Python of the job, and others that may have a torch where it has none; None
            for those on PATH, which may lead to a file server that hangs: a check looks for them.
        environment: The variables that the job will have.
        root: Where ``/proc`` and ``/sys`` are read.
        is_deep: Whether checks may take minutes, as for a scene that is kept.
        meeting: Where this node meets others; None where it is looked at alone.
    """

    policy: CheckPolicy
    node: str = ""
    disks: tuple[Path, ...] = ()
    pythons: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    is_deep: bool = False
    meeting: MeetingPlace | None = None

    def read_text(self, path: str) -> str:
        """Return a file of ``/proc`` or ``/sys``; an empty text where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return ""

    def read_number(self, path: str, default: int = -1) -> int:
        """Return the number that a file of ``/proc`` or ``/sys`` holds."""
        text = self.read_text(path)
        return int(text) if text.lstrip("-").isdecimal() else default

    def list_names(self, path: str) -> list[str]:
        """Return what is in a folder of ``/proc`` or ``/sys``; nothing where there is none."""
        try:
            return sorted(os.listdir(self.root / path.lstrip("/")))  # noqa: PTH208 - names
        except OSError:
            return []


class Check:
    """One check. It runs in a process of its own, which may hang: nobody waits for that.

    Attributes:
        name: The name, as ``--only`` takes it.
        codes: What it may find.
        is_alone: Whether others that run beside it would disturb what it measures.
    """

    name: ClassVar[str]
    codes: ClassVar[tuple[str, ...]] = ()
    is_alone: ClassVar[bool] = False

    @property
    def subject(self) -> str:
        """The part of the node that this one is about; empty for all of it."""
        return ""

    def split(self, context: Context) -> Sequence[Check]:
        """Return the checks that are made in its place, each with a deadline of its own."""
        del context
        return [self]

    def why_skipped(self, context: Context) -> str:
        """Return what is missing here for the check, in words; empty when it can run."""
        del context
        return ""

    def run(self, context: Context) -> CheckResult:
        """Measure, and compare with the policy."""
        raise NotImplementedError

    def make_late_result(self, context: Context, deadline_s: float) -> CheckResult:
        """Return the result where no answer came in time."""
        del context
        reason = f"no answer in {deadline_s:g} s"
        outcome = Outcome.INCOMPLETE
        return CheckResult(name=self.name, subject=self.subject, outcome=outcome, reason=reason)

    def make_result(
        self,
        problems: Sequence[CheckProblem] = (),
        *,
        facts: Mapping[str, str] | None = None,
        figures: Mapping[str, float] | None = None,
        reason: str = "",
    ) -> CheckResult:
        """Return a result whose outcome is that of the worst problem.

        Args:
            problems: What is wrong.
            facts: What was seen.
            figures: What was measured.
            reason: Why a part of it could not be looked at.
        """
        return CheckResult(
            name=self.name,
            subject=self.subject,
            outcome=judge_problems(problems),
            reason=reason,
            facts=dict(facts or {}),
            figures=dict(figures or {}),
            problems=tuple(problems),
        )


def judge_problems(problems: Sequence[CheckProblem]) -> Outcome:
    """Return the outcome that the worst problem means; a note is none."""
    severities = {problem.severity for problem in problems}
    return next((_WORST[one] for one in _WORST if one in severities), Outcome.OK)
