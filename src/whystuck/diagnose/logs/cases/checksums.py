"""V501 by sums over weights that ranks print: replicas that should be alike are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_STEP = re.compile(r"\b(?:step|iteration|iter|epoch)[ =:]{1,3}(\d{1,12})\b", re.IGNORECASE)
# One against one may be either; of shards, each has its own sum.
_LEAST = 3


def make_checksums(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks whose sum differs from that of all others at one step."""
    for step, told in _list_told(view).items():
        sums = Counter(value for value, _ in told.values())
        common, most = sums.most_common(1)[0]
        odd = sorted(rank for rank, (value, _) in told.items() if value != common)
        if len(told) < _LEAST or not odd or 2 * most <= len(told):
            continue
        at = f" at step {step}" if step else ""
        yield Case(
            code=codes.WEIGHTS_DIVERGED,
            summary=f"{name_ranks(odd)} {'has' if len(odd) == 1 else 'have'} other weights than "
            f"the other ranks{at}, as the sums tell that ranks print",
            # The check of a job that then raises is told by this.
            tier=OWN - 1,
            ranks=tuple(odd),
            victims=tuple(rank for rank in told if rank not in odd),
            lines=tuple(told[rank][1] for rank in [*odd, *sorted(set(told) - set(odd))])[
                :_MAX_LINES
            ],
            confidence=Confidence.LIKELY,
            details={"step": int(step or 0), "tensors": []},
            scope=view.ranks,
        )
        return


def _list_told(view: LogView) -> dict[str, dict[int, tuple[str, LogEvent]]]:
    """Return the sum of each rank, by the step that a line names."""
    found: dict[str, dict[int, tuple[str, LogEvent]]] = {}
    for event in view.list_signatures("told.checksum"):
        rank = int(event.groups.get("rank") or event.groups.get("rank2") or -1)
        value = event.groups.get("sum") or event.groups.get("sum2") or ""
        match = _STEP.search(event.text)
        if 0 <= rank <= MAX_RANK:
            found.setdefault(match[1] if match else "", {})[rank] = value, event
    return found
