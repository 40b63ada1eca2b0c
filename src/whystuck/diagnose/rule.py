"""What a rule is: one problem, how it is found, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import (
    Citation,
    Confidence,
    Culprits,
    Finding,
    Place,
    Severity,
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
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ()
    remedies: ClassVar[tuple[str, ...]] = ()

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
