"""Which of the things that logs tell of came first by cause, not by clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from whystuck.diagnose.log_view import LogView
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs import LogEvent, LogTime

__all__ = ["Case", "LogView", "Maker", "Story"]


@dataclass(frozen=True)
class Case:
    """One thing that logs say went wrong, as a finding of one code would tell it.

    Attributes:
        code: The code of the catalogue.
        summary: The sentence of the finding.
        tier: How near such a thing is to a cause: 0 is what nothing else in logs brings about (a
            broken device, a killed process), larger numbers follow from smaller ones.
        ranks: Whom to blame; empty where to name one would be a guess.
        nodes: The hosts at fault.
        victims: Ranks that waited or were cut off.
        lines: The lines that say so, the most telling first.
        exceptions: The tracebacks that say so.
        exits: The ends of processes that say so.
        where: Places in the user's code.
        time: The earliest sure sign of it, None when nothing tells.
        confidence: How sure it is that this happened, whatever else did.
        details: What the finding adds, fixed for each code.
        remedies: What to do, before the general advice of the rule.
    """

    code: str
    summary: str
    tier: int
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    lines: tuple[LogEvent, ...] = ()
    exceptions: tuple[PythonException, ...] = ()
    exits: tuple[ExitRecord, ...] = ()
    where: tuple[Place, ...] = ()
    time: LogTime | None = None
    confidence: Confidence = Confidence.LIKELY
    details: Mapping[str, Any] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()


Maker = Callable[[LogView], Iterator[Case]]


class Story:
    """All cases of one evidence, the root cause first."""

    def __init__(self, view: LogView, makers: Iterable[Maker]) -> None:
        """Make the cases; they are ranked when asked for."""
        self._view = view
        self._makers = tuple(makers)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases, those that others follow from first."""
        found = [case for make in self._makers for case in make(self._view)]
        return tuple(sorted(found, key=lambda case: case.tier))

    def allows_live(self, code: str) -> bool:
        """Tell whether live evidence may decide: no line of a log tells of another cause."""
        root = next(iter(self.cases), None)
        return root is None or root.code == code or not root.lines

    def of(self, code: str) -> tuple[Case, ...]:
        """Return the cases of one code that do not follow from a case of another."""
        return tuple(case for case in self.cases if case.code == code)
