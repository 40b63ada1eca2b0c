"""What the rules about traces share: thresholds, figures, citations and words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.traces.costs import Cost, TraceFacts
from whystuck.evidence.finding import Citation, Confidence, Finding, Place, Severity
from whystuck.evidence.ranks import name_ranks

_MAX_NAME = 60
_BOTH = 2
_TEMPLATE = re.compile(r"<[^<>]*>")
# Places as Kineto writes Python frames, `train.py(12): step`, and as people do, `train.py:12`.
_FRAME = re.compile(r"(?P<file>[^()\s][^()]*)\((?P<line>\d+)\)(?::\s*+(?P<function>.+))?")
_PLACE = re.compile(r"(?=.+\Z)(?P<file>\S.*?):(?P<line>\d+)(?::?\s++(?:in\s++)?(?P<function>.+))?")


@dataclass(frozen=True)
class Told:
    """What a finding says, beside the figures that all of them have."""

    summary: str
    confidence: Confidence
    because: Sequence[Citation] = ()
    blame: Blame | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


class CostRule(Rule):
    """A rule about what a cause costs, as a share of the steps."""

    severity = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("traces",)

    def make_cost_finding(self, told: Told, cost: Cost, warning_share: float) -> Finding:
        """Build a finding of this rule; below the share of a warning, it is a note.

        Args:
            told: What it says; when it blames nobody, it names the ranks that cost more.
            cost: What the cause costs.
            warning_share: From what share of the time on it is a warning.

        Returns:
            The finding.
        """
        found = self.make_finding(
            told.summary,
            told.confidence,
            told.blame or Blame(ranks=cost.uneven),
            because=told.because,
            details=dict(told.details),
            measures=cost.measures() | dict(told.measures),
        )
        if cost.impact >= warning_share:
            return found
        return replace(found, severity=Severity.NOTE)


def cite(table: str, row: int, text: str) -> Citation:
    """Cite a row of a table of the traces, by the name of its file."""
    return Citation(text, f"{table}.csv", row)


def cite_time(facts: TraceFacts, cost: Cost, cause: str, text: str) -> list[Citation]:
    """Cite the step that a cause costs most."""
    table = facts.get("step_time")
    column = f"{cause}_ns"
    if len(table) and column in table.columns and int(table[column].max()) > 0:
        rows = table[column].argsort(kind="stable")[::-1].tolist()
        mine = set(cost.uneven) or set(cost.time.ranks.tolist())
        row = next((one for one in rows if int(table["rank"][one]) in mine), rows[0])
        rank, step = int(table["rank"][row]), int(table["step"][row])
        part, wall = format_ns(table[column][row]), format_ns(table["wall_ns"][row])
        at = f"step {step} of {name_rank(rank)}" if step >= 0 else f"the trace of {name_rank(rank)}"
        return [cite("step_time", row, f"{text} for {part} of {wall} in {at}")]
    return []


def format_ns(value: float) -> str:
    """Write a time of some ns in the unit that suits it."""
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} µs"


def name_rank(rank: int) -> str:
    """Name a rank; traces need not tell theirs."""
    return f"rank {rank}" if rank >= 0 else "the rank"


def name_who(cost: Cost) -> str:
    """Name the ranks that a finding is about."""
    if cost.uneven:
        return name_ranks(cost.uneven)
    if len(cost.time) > 1:
        return "both ranks" if len(cost.time) == _BOTH else f"all {len(cost.time)} ranks"
    return name_rank(int(cost.time.ranks[0]))


def pick_verb(cost: Cost, one: str, many: str) -> str:
    """Choose the form of a verb for those whom `name_who` names."""
    return one if len(cost.uneven or cost.time.ranks) == 1 else many


def shorten(name: str) -> str:
    """Cut a name of a kernel or op down to what tells it apart: no templates, no arguments."""
    short, before = name.replace("(anonymous namespace)::", ""), ""
    while short != before:
        short, before = _TEMPLATE.sub("", short), short
    short = short.partition("(")[0].removeprefix("void ").strip() or name
    return short if len(short) <= _MAX_NAME else short[: _MAX_NAME - 1] + "…"


def parse_place(text: str, rank: int) -> Place | None:
    """Read the place of a Python frame; None where it tells no file and line."""
    match = _FRAME.fullmatch(text.strip()) or _PLACE.fullmatch(text.strip())
    if match is None:
        return None
    function = (match["function"] or "").strip()
    # Lines of more digits than any file has are not lines.
    line = int(match["line"][:9])
    return Place(rank, match["file"].strip(), line, function)
