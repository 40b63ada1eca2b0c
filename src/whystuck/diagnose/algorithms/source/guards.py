"""Lines to which the source lets one rank alone come."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from whystuck.diagnose.algorithms.source.blocks import find_levels, parse_text
from whystuck.diagnose.algorithms.source.branches import LEAVES
from whystuck.diagnose.algorithms.source.rank_tests import asks_for_rank, decide, list_aliases
from whystuck.evidence.ops.collectives import Frame


def is_lone_line(
    frame: Frame, rank: int, others: Sequence[int], sources: Mapping[str, str]
) -> bool:
    """Tell whether a condition on the rank lets a rank come to a line, and the others not.

    What is called there may be anything that waits for all ranks, such as `self.log(...,
    sync_dist=True)`. Where the source asks for the rank more than once, has an `else`, or leaves
    at the end of the block, the others may meet it from there.

    Args:
        frame: The line.
        rank: Who is there.
        others: Ranks that are elsewhere.
        sources: Text of the source files by path.
    """
    text = sources.get(frame.file, "")
    tree = parse_text(text) if text else None
    if tree is None or not others:
        return False
    asked = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and asks_for_rank(node.test)
    ]
    if len(asked) != 1:
        return False
    only = asked[0]
    # What follows a block that leaves is the way of the others, as an `else` is.
    if only.orelse or isinstance(only.body[-1], LEAVES):
        return False
    if any(isinstance(node, ast.Or) for node in ast.walk(only.test)):
        return False  # by the other condition, all come there
    levels = find_levels(tree, frame.line)
    aliases = list_aliases(text)
    return (
        any(level.node is only and level.block == "body" for level in levels)
        and decide(only.test, rank, aliases) is True
        and all(decide(only.test, other, aliases) is False for other in others)
    )
