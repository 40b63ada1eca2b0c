"""The stacks of all ranks as one tree: outermost frame first, each node with its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.sections import StackNode

# Of a deeper stack, as of a function that calls itself, the middle tells nothing. The tree is
# walked by functions that call themselves, too.
_INNERMOST, _OUTERMOST = 150, 100


@dataclass
class _Branch:
    ranks: set[int] = field(default_factory=set)
    children: dict[Frame, _Branch] = field(default_factory=dict)


def merge_stacks(frames_by_rank: Mapping[int, Sequence[Frame]]) -> list[StackNode]:
    """Merge the stacks of main threads.

    Args:
        frames_by_rank: The stack of each rank, innermost frame first.

    Returns:
        The roots of the tree; the branch with most ranks comes first.
    """
    root = _Branch()
    for rank, frames in frames_by_rank.items():
        branch = root
        if len(frames) > _INNERMOST + _OUTERMOST:
            frames = [*frames[:_INNERMOST], *frames[-_OUTERMOST:]]  # noqa: PLW2901 - made shorter
        for frame in reversed(frames):
            branch = branch.children.setdefault(frame, _Branch())
            branch.ranks.add(rank)
    return _freeze(root)


def _freeze(branch: _Branch) -> list[StackNode]:
    ordered = sorted(
        branch.children.items(), key=lambda item: (-len(item[1].ranks), min(item[1].ranks))
    )
    return [
        StackNode(
            function=frame.function,
            file=frame.file,
            line=frame.line,
            ranks=format_ranks(child.ranks),
            is_user_code=is_user_frame(frame),
            children=_freeze(child),
        )
        for frame, child in ordered
    ]
