"""C204 by MPI: a rank that ended the whole job itself, and what it printed may tell why."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_victims
from whystuck.diagnose.logs.story import TAKEN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_WORLD = "MPI_COMM_WORLD"
# Any exception or crash says more: the abort is how that ends the job.
_TIER = TAKEN + 1


def make_aborts(view: LogView) -> Iterator[Case]:
    """Make the case of a rank that called MPI_Abort, of which MPI tells no reason."""
    events = [event for event in view.list_signatures("mpi.abort") if is_said(event)]
    ranks = sorted({rank for event in events if (rank := _find_rank(event)) >= 0})
    if len(ranks) != 1:
        return
    code = next((told for event in events if (told := event.groups.get("code") or "")), "")
    with_code = f" with code {code}" if code else ""
    yield Case(
        code=codes.PYTHON_EXCEPTION,
        summary=f"{name_ranks(ranks)} ended the job by MPI_Abort{with_code}; MPI tells no reason: "
        "what this rank printed before does, if anything",
        tier=_TIER,
        ranks=tuple(ranks),
        victims=list_victims(view, ranks),
        lines=tuple(events),
        time=find_time(events),
        details={"exception": "MPI_Abort", "message": f"code {code}" if code else ""},
        remedies=(
            f"mpirun --output file=OUT ...   # then read the end of {name_ranks(ranks)}'s output",
        ),
    )


def _find_rank(event: LogEvent) -> int:
    """Return the rank that a line names, -1 where it counts in another group than that of all."""
    if (event.groups.get("comm") or event.groups.get("comm2") or "").strip() != _WORLD:
        return -1
    number = int(event.groups.get("rank") or event.groups.get("rank2") or -1)
    return number if number <= MAX_RANK else -1
