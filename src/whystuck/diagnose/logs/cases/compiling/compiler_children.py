"""H119 by the processes of a host: a compiler runs below one rank alone, for which others wait."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
)
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks, parse_ranks

_MAX_LINES = 6


def make_compiler_children(view: LogView) -> Iterator[Case]:
    """Make the case of a rank whose compiler is at work while all others that are listed have none.

    A rank that waits itself compiles nothing that others wait for.
    """
    rows = list(view.list_signatures("table.compiler"))
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    owners = {row.rank for row in rows}
    waiting = set(list_ranks(waits)) - {-1}
    if len(owners) != 1 or not waiting or owners & waiting:
        return
    (rank,) = owners
    last = rows[-1]
    listed = parse_ranks(last.groups["ranks"]) | waiting
    took = f", for {int(last.groups['s'])} s by the list" if int(last.groups["s"]) else ""
    yield Case(
        code=codes.COMPILE_DIVERGENCE,
        summary=f"{last.groups['tool']} runs below rank {rank} alone{took}: it compiles, and "
        f"{name_ranks(sorted(waiting))} waited for it until the time limit",
        tier=BUSY,
        ranks=(rank,),
        victims=tuple(sorted(listed - {rank})),
        lines=(*rows[-2:], *waits)[:_MAX_LINES],
        exceptions=find_exceptions(view, waits),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(
            "compile on one rank before the others wait, or share the cache of the compiler",
            "raise the time limit: `init_process_group(timeout=...)`",
        ),
    )
