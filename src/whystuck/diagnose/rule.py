"""What a rule is: one problem, how it is found, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import (
    Citation,
    Confidence,
    Culprits,
    Finding,
    Place,
    Severity,
    Verdict,
    Victims,
)
from whystuck.evidence.ranks import FIRST_UNNUMBERED, format_ranks, is_process, name_ranks

_PROCESS = re.compile(r"\brank (-\d{1,8})\b")


@dataclass(frozen=True)
class Blame:
    """Whom a finding names, and who only suffers."""

    ranks: Sequence[int] = ()
    groups: Sequence[str] = ()
    nodes: Sequence[str] = ()
    victims: Sequence[int] = ()
    where: Sequence[Place] = field(default=())


class Rule:
    """One problem.

    The docstring of a rule is its page in the documentation: a first line of one sentence, then
    what it means, how it is found, false alarms, and what to do.

    Attributes:
        code: The code of the catalogue, never reused.
        name: The name of the catalogue.
        severity: The severity when the culprit is at least likely.
        needs: Tables of the evidence without any of which the rule cannot say anything.
        remedies: Advice that can be followed as it stands.
        explains: The codes, or families, of what only follows from a finding of this rule.
        explains_from: The least severity of a finding that explains those of others.
        fallback_level: Above 0 for a rule that knows no cause: its findings are left out beside
            any that blames somebody, those of the highest level first.
        loss_effect: As what the findings follow from collectives that torch lost, where they can.
        is_loss: Whether values are lost for good: nothing explains that, nor is it undone where the
            job goes on.
        quiet_verdict: The verdict where nobody is to blame and a finding of this rule says why.
        end_class: The word for an end of this cause, by which failed jobs are sorted.
        shows_ops: Whether a report shows the ops beside a finding.
        compares_ops: Whether the findings say themselves how ops of ranks differ.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ()
    remedies: ClassVar[tuple[str, ...]] = ()
    explains: ClassVar[tuple[str, ...]] = ()
    explains_from: ClassVar[Severity] = Severity.WARNING
    fallback_level: ClassVar[int] = 0
    loss_effect: ClassVar[LossEffect | None] = None
    is_loss: ClassVar[bool] = False
    quiet_verdict: ClassVar[Verdict | None] = None
    end_class: ClassVar[str] = ""
    shows_ops: ClassVar[bool] = False
    compares_ops: ClassVar[bool] = False

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Look at the scene and yield what is wrong.

        Args:
            scene: The evidence and what was worked out from it.
            policy: The thresholds.

        Yields:
            A finding for each separate problem.
        """
        raise NotImplementedError

    def make_finding(
        self,
        summary: str,
        confidence: Confidence,
        blame: Blame,
        *,
        because: Sequence[Citation] = (),
        details: dict[str, Any] | None = None,
        measures: dict[str, float] | None = None,
    ) -> Finding:
        """Build a finding of this rule; a culprit that is only possible is a warning.

        Args:
            summary: One sentence that stands alone.
            confidence: How sure it is.
            blame: Whom it names.
            because: The facts it rests on.
            details: The fixed keys of this code.
            measures: Figures, with their unit in the name.

        Returns:
            The finding.
        """
        severity = self.severity
        if severity is Severity.ERROR and confidence is Confidence.POSSIBLE:
            severity = Severity.WARNING
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity,
            confidence=confidence,
            summary=_name_processes(summary),
            culprits=Culprits(
                ranks=sorted(rank for rank in blame.ranks if not is_process(rank)),
                nodes=list(blame.nodes),
                groups=list(blame.groups),
            ),
            victims=Victims(format_ranks(set(blame.victims) - set(blame.ranks))),
            where=[replace(one, rank=max(one.rank, -1)) for one in blame.where],
            because=[replace(one, text=_name_processes(one.text)) for one in because],
            details=_add_processes(details or {}, blame.ranks),
            remedies=list(self.remedies),
            measures=measures or {},
        )


def _name_processes(text: str) -> str:
    """Call a process a process where its rank is not known."""
    if "rank -" not in text:
        return text
    return _PROCESS.sub(lambda match: name_ranks([int(match[1])]), text)


def _add_processes(details: Mapping[str, Any], ranks: Sequence[int]) -> dict[str, Any]:
    """Add the numbers of the processes at fault whose ranks are not known."""
    found = sorted(-rank for rank in ranks if rank > -FIRST_UNNUMBERED and is_process(rank))
    return {**details, "processes": found} if found else dict(details)
