"""What a Kineto trace that covers a stall tells of the work before the op that does not end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whystuck.evidence.finding import Citation
from whystuck.evidence.traces.tables import TraceSummary

_NS_PER_S = 1e9


@dataclass(frozen=True)
class Before:
    """What a rank launched before an op, of which its trace has no work; empty where it has all."""

    rank: int
    op: str
    text: str
    artifact: str


def find_work_before(traces: TraceSummary, issued_ns: Mapping[int, int]) -> list[Before]:
    """Find what the devices of ranks did before an op.

    Args:
        traces: The traces.
        issued_ns: When each rank issued the op; traces that do not cover that tell nothing.

    Returns:
        One for each rank with such a trace.
    """
    headers = {one.rank: one for one in traces.ranks}
    found = []
    for rank, name, end_ns, _count, api, op, open_ns in traces.get("unfinished").rows():
        header, at_ns = headers.get(rank), issued_ns.get(rank, 0)
        if header is None or not header.started_ns <= at_ns <= header.ended_ns:
            continue
        is_open = 0 < open_ns < at_ns
        parts = _describe(rank, name, at_ns - end_ns, op or api, at_ns - open_ns if is_open else 0)
        found.append(
            Before(rank, (op or api) if is_open else "", "; ".join(parts), header.artifact)
        )
    return found


def _describe(rank: int, name: str, ago_ns: int, op: str, open_ns: int) -> Iterator[str]:
    if name:
        when = "before" if ago_ns >= 0 else "after"
        yield (
            f"the last work in the trace of rank {rank} is {name}, which ended "
            f"{abs(ago_ns) / _NS_PER_S:.3g} s {when} the op was issued"
        )
    else:
        yield f"the trace of rank {rank} has no work of its device"
    if open_ns:
        yield f"what {op} launched {open_ns / _NS_PER_S:.3g} s before the op did not end in it"


def list_before(found: list[Before]) -> dict[str, str]:
    """Return the op whose work did not end before the pending one, by rank."""
    return {str(one.rank): one.op for one in found if one.op}


def cite_before(found: list[Before], most: int) -> list[Citation]:
    """Cite traces, those with open work first."""
    ordered = sorted(found, key=lambda one: not one.op)
    return [Citation(one.text, one.artifact) for one in ordered[:most]]
