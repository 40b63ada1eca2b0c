"""What checks of a node tell beside their findings."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.evidence.nodes.checks import CheckResult, Outcome


def is_checked(results: Sequence[CheckResult]) -> bool:
    """Return whether checks show that a node is well: none is incomplete, and some were made."""
    outcomes = {result.outcome for result in results}
    return Outcome.INCOMPLETE not in outcomes and bool(outcomes - {Outcome.SKIPPED})
