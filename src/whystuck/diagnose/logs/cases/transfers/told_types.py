"""Whose tensor has another type, where transports meet messages of two sizes.

Source that is shown tells it by a condition on the rank; else what ranks print.
"""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "float64": 8, "int64": 8, "uint64": 8}
_BYTES |= {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
_BYTES |= {"float32": 4, "int32": 4, "uint32": 4}
_LEAST_RANKS = 3
_SIDES = 2


@dataclass(frozen=True)
class OddTypes:
    """The few ranks that give another type than the others, both types, and what says so."""

    ranks: tuple[int, ...]
    own: str
    rest: str
    lines: tuple[LogEvent, ...]
    is_source: bool


def find_odd_types(view: LogView, counts: tuple[int, int]) -> OddTypes | None:
    """Find the ranks whose type explains two sizes of one tensor.

    Args:
        view: The logs.
        counts: The bytes that came, and those that were expected.
    """
    notes = list(view.list_signatures("table.rank_type"))
    coded = [one for one in notes if one.groups["rest"]]
    fitting = [one for one in coded if _fits(one.groups["type"], one.groups["rest"], counts)]
    if coded:
        first = fitting[0].groups if len({_key(one) for one in fitting}) == 1 else None
        if first is None:
            return None
        ranks = (int(first["own"]),)
        return OddTypes(ranks, first["type"], first["rest"], tuple(fitting[:1]), is_source=True)
    return _find_printed(notes, counts)


def _find_printed(notes: list[LogEvent], counts: tuple[int, int]) -> OddTypes | None:
    last = {int(one.groups["own"]): one for one in notes}
    types = {rank: one.groups["type"] for rank, one in sorted(last.items())}
    kinds = sorted(set(types.values()), key=[*types.values()].count)
    if len(last) < _LEAST_RANKS or len(kinds) != _SIDES or not _fits(kinds[0], kinds[-1], counts):
        return None
    few = tuple(rank for rank, kind in types.items() if kind == kinds[0])
    if 2 * len(few) >= len(types):
        return None
    other = next(rank for rank in types if rank not in few)
    lines = tuple(last[rank] for rank in (*few, other))
    return OddTypes(few, kinds[0], kinds[1], lines, is_source=False)


def _key(note: LogEvent) -> tuple[str, str, str]:
    return note.groups["own"], note.groups["type"], note.groups["rest"]


def _fits(one: str, other: str, counts: tuple[int, int]) -> bool:
    """Tell whether as many elements of two types have the two sizes."""
    sizes = _BYTES.get(one, 0), _BYTES.get(other, 0)
    if 0 in sizes or sizes[0] == sizes[1] or 0 in counts:
        return False
    return counts[0] * min(sizes) == counts[1] * max(sizes) or (
        counts[0] * max(sizes) == counts[1] * min(sizes)
    )
