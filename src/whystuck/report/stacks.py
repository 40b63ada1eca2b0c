"""From the merged stack tree to one row for each set of ranks that is in the same place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from whystuck.evidence.ranks import format_ranks, name_ranks, parse_ranks
from whystuck.evidence.sections import StackNode
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.secrets import hide_secrets

# The frames people look for are the innermost of their own code.
_FRAMES_SHOWN = 3
_DECORATORS = (".wrapper", "wrapper", "_wrapped_call_impl", "decorate_context", ".inner")
# A rank set longer than this is shown by its size and its start.
_RANKS_CHARS = 24
# Deeper than any stack that is not a runaway recursion, and safe for encoders that recurse.
MAX_DEPTH = 150


@dataclass(frozen=True)
class StackRow:
    """Where one set of ranks is: the innermost user frames, outermost of them first.

    ``frames`` are ``(function, file:line)``; ``inside`` is the library function that the
    innermost user frame is in, or empty.
    """

    ranks: frozenset[int]
    frames: tuple[tuple[str, str], ...]
    inside: str


def label_ranks(ranks: frozenset[int]) -> str:
    """Name a set of ranks in few letters: ``rank 3``, ``ranks 0-2``, ``412 ranks (0-9,12,…)``."""
    if len(format_ranks(ranks)) <= _RANKS_CHARS:
        return name_ranks(ranks)
    start = format_ranks(ranks)[: _RANKS_CHARS // 2].rpartition(",")[0]
    return f"{len(ranks)} ranks ({start},…)"


def fold_stacks(stacks: Sequence[StackNode]) -> list[StackRow]:
    """Return one row for each place ranks are in, in the order of their first rank."""
    ranks_by_place: dict[tuple[tuple[tuple[str, str], ...], str], set[int]] = {}
    for path, ranks in _walk(stacks):
        ranks_by_place.setdefault(_place_of(path), set()).update(ranks)
    rows = [
        StackRow(frozenset(ranks), frames, inside)
        for (frames, inside), ranks in ranks_by_place.items()
    ]
    return sorted(rows, key=lambda row: (min(row.ranks), row.frames))


def limit_depth(stacks: Sequence[StackNode], depth: int = MAX_DEPTH) -> list[StackNode]:
    """Cut the tree below ``depth``: a job stuck in a recursion must not make us recurse as deep."""
    if depth <= 0:
        return []
    return [
        msgspec.structs.replace(node, children=limit_depth(node.children, depth - 1))
        for node in stacks
    ]


def short_place(file: str, line: int) -> str:
    """Write a place by the base name of its file."""
    # The name may end in the middle of a secret.
    return show_line(f"{hide_secrets(file).rstrip('/').rpartition('/')[2]}:{line}")


def _walk(stacks: Sequence[StackNode]) -> Iterator[tuple[tuple[StackNode, ...], frozenset[int]]]:
    """Yield each path that some ranks end in. Iterative: stacks of hostile depth must not fail."""
    todo: list[tuple[tuple[StackNode, ...], StackNode]] = [((), node) for node in reversed(stacks)]
    while todo:
        above, node = todo.pop()
        path = (*above, node)
        below: set[int] = set()
        for child in node.children:
            below |= parse_ranks(child.ranks)
        ending = parse_ranks(node.ranks) - below
        if ending:
            yield path, ending
        todo.extend((path, child) for child in reversed(node.children))


def _place_of(path: tuple[StackNode, ...]) -> tuple[tuple[tuple[str, str], ...], str]:
    user = [index for index, node in enumerate(path) if node.is_user_code]
    if not user:
        return tuple(_frame(node) for node in path[-2:]), ""
    frames = tuple(_frame(path[index]) for index in user[-_FRAMES_SHOWN:])
    below = [show_line(node.function) for node in path[user[-1] + 1 :]]
    # A decorator of the library says less than what it wraps.
    inside = next((name for name in below if not name.endswith(_DECORATORS)), "".join(below[:1]))
    return frames, inside


def _frame(node: StackNode) -> tuple[str, str]:
    return show_line(node.function), short_place(node.file, node.line)
