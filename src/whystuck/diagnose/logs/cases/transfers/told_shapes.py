"""Shapes that ranks print before transports meet messages of two sizes: whose tensor is which."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_LEAST_RANKS = 3
_SIDES = 2
# Of the types that tensors have.
_ELEMENT_BYTES = (1, 2, 4, 8)
_NUMBER = re.compile(r"\d{1,12}")


@dataclass(frozen=True)
class OddShapes:
    """The few ranks whose last shape differs from that of most, all shapes, and their lines."""

    ranks: tuple[int, ...]
    shapes: dict[int, tuple[int, ...]]
    lines: tuple[LogEvent, ...]


def find_odd_shapes(view: LogView, counts: tuple[int, int]) -> OddShapes | None:
    """Find the ranks whose tensor has the size in bytes that their peers did not expect.

    Two sizes alone do not tell whose is wrong, and shapes alone not what was sent. Where the last
    shapes that ranks print are as large as both, with one type of elements, they are the tensors.
    So they are where both sizes are those of pieces, as a ring sends a tensor in one or two for
    each rank.

    Args:
        view: The logs.
        counts: The bytes that came, and those that were expected.
    """
    told = view.list_signatures("torch.shape", "table.rank_shape")
    last = {
        event.rank: event for event in sorted(told, key=lambda event: event.row) if event.rank >= 0
    }
    if len(last) < _LEAST_RANKS or len({event.artifact for event in last.values()}) > 1:
        return None
    shapes = {rank: _read_shape(event) for rank, event in sorted(last.items())}
    sizes = {rank: prod(shape) for rank, shape in shapes.items()}
    if len(set(sizes.values())) != _SIDES or min(sizes.values()) <= 0:
        return None
    most = max(len(last), view.world_size)
    is_sent = any(_are_sent(set(sizes.values()), counts, parts) for parts in (1, most, 2 * most))
    few, many = sorted(
        (tuple(rank for rank in sizes if sizes[rank] == size) for size in set(sizes.values())),
        key=len,
    )
    if not is_sent or len(few) == len(many):
        return None
    return OddShapes(few, shapes, tuple(last[rank] for rank in (*few, many[0])))


def _are_sent(sizes: set[int], counts: tuple[int, int], parts: int) -> bool:
    """Tell whether tensors of two sizes, each cut into so many pieces, may have these bytes."""
    one, other = (_cut(size, parts) for size in sorted(sizes))
    small, large = sorted(counts)
    return small < large and any(
        small == low * each and large == high * each
        for each in _ELEMENT_BYTES
        for low in one
        for high in other
    )


def _cut(size: int, parts: int) -> set[int]:
    """Return the sizes of the pieces of a tensor: the last one has what is left."""
    piece = -(-size // parts)
    return {piece, size % piece} - {0}


def _read_shape(event: LogEvent) -> tuple[int, ...]:
    text = event.groups.get("dims") or event.groups.get("dims2") or ""
    return tuple(int(number) for number in _NUMBER.findall(text))
