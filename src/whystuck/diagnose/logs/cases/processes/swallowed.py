"""H108 by what a rank prints that goes on past exceptions: it skips what the others wait in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
# Once may be what a rank got over, where it does not wait in another op than the others.
_LEAST = 2


def make_swallowed(view: LogView) -> Iterator[Case]:
    """Make the case of the one rank that caught exceptions and went on, while others waited."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    waiting = frozenset(list_ranks(waits))
    caught = [event for event in view.list_signatures("py.swallowed") if event.rank >= 0]
    ranks = list_ranks(caught)
    # Where several do so, or who does waits with the others, it is nobody's alone.
    is_apart = len(ranks) == 1 and _is_apart(waits, ranks[0])
    if len(ranks) != 1 or not waiting - set(ranks) or (ranks[0] in waiting and not is_apart):
        return
    count = sum(event.count for event in caught)
    if count < _LEAST and not is_apart:
        return
    waiting -= set(ranks)
    often = ", again and again" if count >= _LEAST else ""
    first = caught[0]
    stem = first.groups.get("exc") or first.groups.get("exc2") or ""
    kind = f"{stem}{'Error' if f'{stem}Error' in first.text else 'Exception'}"
    yield Case(
        code=codes.SKIPPED_COLLECTIVE,
        summary=f"{name_ranks(ranks)} caught {kind} and went on with its next batch"
        f"{often}: it skipped the collectives in which {name_ranks(sorted(waiting))} waited",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*caught[:2], *waits[: _MAX_LINES - 2]),
        time=find_time(waits),
        details={"exception": kind, "count": count},
        remedies=(
            "let the exception end the rank",
            "or have all ranks skip the batch: reduce a flag before the step that tells of it",
        ),
    )


def _is_apart(waits: Sequence[LogEvent], rank: int) -> bool:
    """Tell whether a rank waited in another op than all others did, or in one of another size."""
    ops = {
        is_own: {
            (event.groups.get("op") or "", event.groups.get("nin") or "")
            for event in waits
            if event.groups.get("op") and (event.rank == rank) == is_own
        }
        for is_own in (True, False)
    }
    return bool(ops[True] and ops[False]) and ops[True].isdisjoint(ops[False])
