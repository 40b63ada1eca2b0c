"""What checks of nodes tell beside their findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.evidence.finding import Gap
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.checks import CheckResult, CheckRow, Outcome

_QUIET = {Outcome.OK, Outcome.SKIPPED}
# Of a job with many nodes, which all have the same to tell.
_MOST_SHOWN = 64


def is_checked(results: Sequence[CheckResult]) -> bool:
    """Return whether checks show that a node is well: none is incomplete, and some were made."""
    outcomes = {result.outcome for result in results}
    return Outcome.INCOMPLETE not in outcomes and bool(outcomes - {Outcome.SKIPPED})


def is_only_checks(evidence: Evidence) -> bool:
    """Return whether there is nothing to judge but checks of nodes."""
    if evidence.incident.kind == "check":
        return True
    if not evidence.checks or evidence.incident.kind != "files":
        return False
    # What a node is like, and its topology, are no job.
    tables = (
        evidence.collectives, evidence.ops, evidence.stacks, evidence.processes, evidence.beats,
        evidence.exceptions, evidence.exits, evidence.fatals, evidence.logs.files, evidence.ras,
        evidence.traces.ranks,
    )  # fmt: skip
    return not any(len(table) for table in tables)


def list_check_gaps(evidence: Evidence) -> Iterator[Gap]:
    """Yield the checks that had no end, where checks are all there is."""
    if is_only_checks(evidence):
        for result in evidence.checks:
            if result.outcome is Outcome.INCOMPLETE:
                place = f" on {result.node}" if result.artifact and result.node else ""
                yield Gap(None, f"result of check {result.title}{place}", result.reason)


def list_check_rows(evidence: Evidence) -> list[CheckRow]:
    """Return the rows of the table of checks; of a job, those that have something to tell."""
    if is_only_checks(evidence):
        return [one.to_row() for one in evidence.checks]
    told = [one.to_row() for one in evidence.checks if one.outcome not in _QUIET]
    return told[:_MOST_SHOWN]
