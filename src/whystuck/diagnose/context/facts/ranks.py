"""The ranks of a job, and those that any artifact tells of."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.model import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Ranks:
    """The ranks of a job."""

    evidence: Evidence
    ops: Ops

    @cached_property
    def all(self) -> frozenset[int]:
        """All ranks of the job, seen or not."""
        return self.evidence.topology.ranks | self.seen

    @cached_property
    def seen(self) -> frozenset[int]:
        """Ranks with evidence of what they do: verdicts take these as looked at."""
        evidence = self.evidence
        seen = set(self.ops.recorded_ranks)
        seen |= {item.rank for item in evidence.stacks}
        seen |= {item.rank for item in evidence.processes}
        seen |= {item.rank for item in evidence.beats} | {item.rank for item in evidence.fatals}
        seen |= {item.rank for item in evidence.exits}
        seen |= {item.rank for item in evidence.inspections}
        seen |= {item.rank for item in evidence.exceptions}
        seen |= {item.rank for item in evidence.logs.events}
        for file in evidence.logs.files:
            seen |= file.ranks
        # Logs of several ranks in one file can hold exceptions of nobody known.
        seen.discard(-1)
        return frozenset(seen)

    @cached_property
    def has_few_unknown(self) -> bool:
        """Whether so few ranks lack evidence that their absence itself points at them.

        A rank whose file is damaged is not absent.
        """
        damaged = {gap.rank for gap in self.evidence.gaps if gap.what == "flight recorder dump"}
        unknown = self.all - self.seen - damaged
        return len(unknown) == 1 and len(self.all) > len(unknown) + 1

    @cached_property
    def unknown(self) -> frozenset[int]:
        """Ranks of the job of which no artifact tells anything."""
        return self.all - self.seen

    @property
    def victims(self) -> list[int]:
        """All ranks of the job, for findings that take the job down."""
        return sorted(self.all)
