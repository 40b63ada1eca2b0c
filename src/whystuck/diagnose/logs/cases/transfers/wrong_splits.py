"""H108 split-mismatch as a rank raises it: torch checks the splits of a call before it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.logs.cases.parts import find_time, list_victims, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

# Checks of c10d, in a rank and before its call: its own splits do not fit its own tensor.
_SPLITS = re.compile(
    r"^Split sizes do(?:es)?(?:n't| not) match total dim 0 size"
    r"|^Number of tensor splits not equal to group size"
    r"|^Tensor's dim 0 does not divide equally across group size"
)


def make_wrong_splits(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose splits do not add up to what their tensor holds.

    Where all ranks say so, the program is wrong everywhere, and nobody differs.
    """
    raised = tuple(
        item for item in view.exceptions if _SPLITS.search(item.message) and not item.is_caught
    )
    if not raised:
        return
    found = tuple(sorted({item.rank for item in raised} - {-1}))
    ranks = () if view.is_everywhere(frozenset(found)) else found
    where = place_exceptions(raised[:1])
    place = f" in {describe_place(where[0])}" if where else ""
    yield Case(
        code=codes.SPLIT_MISMATCH,
        summary=f"the splits that {name_ranks(found) if found else 'a rank'} gave to an all-to-all "
        f"do not fit its tensor{place}: {raised[0].message[:160]}",
        tier=OWN,
        ranks=ranks,
        victims=list_victims(view, found),
        exceptions=raised,
        where=where,
        time=find_time(raised),
        confidence=Confidence.LIKELY,
        details={"group": "", "sequence": 0},
        remedies=(
            "print `sum(splits)` and `tensor.shape[0]` before the call: they have to be equal",
        ),
        scope=frozenset(found),
    )
