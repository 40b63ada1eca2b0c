"""How two lines of one function relate: exclusive branches, one after a loop, and so on."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from whystuck.diagnose.algorithms.source.blocks import Step, find_path, item_holds, parse_text
from whystuck.evidence.ops.collectives import Frame

LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
# What loops go over that all ranks have as many of.
_EVEN_LOOP = re.compile(r"param|grad|named_|layer|module|bucket|optimizer", re.IGNORECASE)
_BATCH_LOOP = re.compile(r"batch|loader|data|shard|stream|sampler|iter", re.IGNORECASE)


class Relation(Enum):
    """How line A relates to line B of the same function."""

    UNKNOWN = auto()
    SAME_LINE = auto()
    EXCLUSIVE = auto()
    A_EXTRA = auto()
    B_EXTRA = auto()
    A_EXTRA_BY_RANK = auto()
    B_EXTRA_BY_RANK = auto()
    A_AFTER_LOOP = auto()
    B_AFTER_LOOP = auto()
    A_AFTER_INNER_LOOP = auto()
    B_AFTER_INNER_LOOP = auto()
    A_FIRST = auto()
    B_FIRST = auto()


def relate_sites(
    site_a: Sequence[Frame],
    site_b: Sequence[Frame],
    sources: Mapping[str, str],
    *,
    with_rank: bool = True,
) -> Relation:
    """Tell how two call sites relate at the frame where their callers part.

    Args:
        site_a: User frames of one call, innermost first.
        site_b: User frames of the other call.
        sources: Text of the source files by path.
        with_rank: Whether a condition on the rank around one of them goes before their order.

    Returns:
        The relation of A to B.
    """
    pairs = zip(reversed(site_a), reversed(site_b), strict=False)
    for depth, (frame_a, frame_b) in enumerate(pairs, 1):
        if frame_a.file != frame_b.file or frame_a.function != frame_b.function:
            return Relation.SAME_LINE
        if frame_a.line != frame_b.line:
            deeper_a, deeper_b = site_a[: len(site_a) - depth], site_b[: len(site_b) - depth]
            text = sources.get(frame_a.file, "")
            relation = relate_lines(
                text,
                frame_a.line,
                frame_b.line,
                loops=(_has_loop(deeper_a, sources), _has_loop(deeper_b, sources)),
            )
            if not with_rank or relation in {Relation.EXCLUSIVE, Relation.UNKNOWN}:
                return relation
            by_rank = (
                _asks_rank([frame_a, *deeper_a], sources),
                _asks_rank([frame_b, *deeper_b], sources),
            )
            return _BY_RANK.get(by_rank, relation)
    return Relation.SAME_LINE if site_a and site_b else Relation.UNKNOWN


# A call that only one of the two sites makes under a question about the rank is its own.
_BY_RANK = {
    (True, False): Relation.A_EXTRA_BY_RANK,
    (False, True): Relation.B_EXTRA_BY_RANK,
}
_RANK_TEST = re.compile(r"rank|main_process|is_main|master|primary|coordinator", re.IGNORECASE)


def has_rank(text: str) -> bool:
    """Tell whether an expression asks for the rank."""
    return bool(_RANK_TEST.search(text))


def _asks_rank(frames: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    """Tell whether any of these lines stands below an ``if`` that asks for the rank."""
    return any(
        isinstance(node, ast.If)
        and block in {"body", "orelse"}
        and has_rank(ast.unparse(node.test))
        for frame in frames
        for node, block in _find_steps(frame, sources)
    )


def _has_loop(frames: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    return any(
        isinstance(node, _LOOPS) and block in {"body", "test"}
        for frame in frames
        for node, block in _find_steps(frame, sources)
    )


def _find_steps(frame: Frame, sources: Mapping[str, str]) -> list[Step]:
    text = sources.get(frame.file, "")
    tree = parse_text(text) if text else None
    return find_path(tree, frame.line) if tree else []


def is_in_loop(
    site: Sequence[Frame], sources: Mapping[str, str], *, over_batches: bool = False
) -> bool:
    """Tell whether a call site is in a loop that may be longer on one rank than on another.

    Args:
        site: The user's frames, innermost first.
        sources: Text of the source files by path.
        over_batches: Whether the loop has to go over something that is named after batches.

    Returns:
        Whether there is such a loop.
    """
    loops = [
        ast.unparse(node.test if isinstance(node, ast.While) else node.iter)
        for frame in site
        for node, block in _find_steps(frame, sources)
        if isinstance(node, _LOOPS) and block in {"body", "test"}
    ]
    return any(
        not _EVEN_LOOP.search(loop) and (not over_batches or bool(_BATCH_LOOP.search(loop)))
        for loop in loops
    )


def share_loop(
    site_a: Sequence[Frame], site_b: Sequence[Frame], sources: Mapping[str, str]
) -> bool:
    """Tell whether two call sites are in one loop of the last function that leads to both."""
    for frame_a, frame_b in zip(reversed(site_a), reversed(site_b), strict=False):
        if frame_a.file != frame_b.file or frame_a.function != frame_b.function:
            return False
        loops = [step[0] for step in _find_steps(frame_a, sources) if isinstance(step[0], _LOOPS)]
        if any(item_holds(loop, frame_b.line) for loop in loops):
            return True
    return False


def may_be_past(frame: Frame, line: int, sources: Mapping[str, str]) -> bool:
    """Tell whether a rank that is at a frame may have come by a line of its function before."""
    if line <= frame.line:
        return True
    loops = [step[0] for step in _find_steps(frame, sources) if isinstance(step[0], _LOOPS)]
    return any(item_holds(loop, line) for loop in loops)


def has_both_orders(
    site_a: Sequence[Frame], site_b: Sequence[Frame], sources: Mapping[str, str]
) -> bool:
    """Tell whether two branches of one ``if`` make the calls at two lines in opposite orders."""
    for frame_a, frame_b in zip(reversed(site_a), reversed(site_b), strict=False):
        if frame_a.file != frame_b.file or frame_a.function != frame_b.function:
            return False
        if frame_a.line != frame_b.line:
            steps = zip(_find_steps(frame_a, sources), _find_steps(frame_b, sources), strict=False)
            node = next((a for (a, x), (b, y) in steps if a is b and x != y), None)
            return isinstance(node, ast.If) and _is_swapped(node, frame_a.line, frame_b.line)
    return False


def _is_swapped(node: ast.If, line_a: int, line_b: int) -> bool:
    for first, second in ((node.body, node.orelse), (node.orelse, node.body)):
        mine, theirs = _list_calls(first), _list_calls(second)
        here = next((name for line, name in mine if line == line_a), "")
        there = next((name for line, name in theirs if line == line_b), "")
        if here and there and here != there:
            names, others = [name for _, name in mine], [name for _, name in theirs]
            return there in names[names.index(here) :] and here in others[others.index(there) :]
    return False


def _list_calls(body: Sequence[ast.stmt]) -> list[tuple[int, str]]:
    """List the lines and names of the calls of a block; a group in a call is part of its name."""
    found = []
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                groups = [ast.unparse(word.value) for word in node.keywords if word.arg == "group"]
                found.append((node.lineno, " ".join([ast.unparse(node.func), *groups])))
    return sorted(found, key=lambda call: call[0])


def relate_lines(
    text: str, line_a: int, line_b: int, loops: tuple[bool, bool] = (False, False)
) -> Relation:
    """Tell how line A of a source text relates to line B.

    ``loops`` tells of each whether what is called there is inside a loop of its own function.
    """
    order = Relation.A_FIRST if line_a < line_b else Relation.B_FIRST
    tree = parse_text(text) if text else None
    if tree is None:
        return Relation.UNKNOWN
    path_a, path_b = find_path(tree, line_a), find_path(tree, line_b)
    shared = 0
    while (
        shared < min(len(path_a), len(path_b))
        and path_a[shared][0] is path_b[shared][0]
        and path_a[shared][1] == path_b[shared][1]
    ):
        shared += 1
    rest_a, rest_b = path_a[shared:], path_b[shared:]
    if not rest_a or not rest_b:
        return order
    if rest_a[0][0] is rest_b[0][0]:
        # One statement, two blocks: the branches of an `if`, or a test and its body.
        blocks = {rest_a[0][1], rest_b[0][1]}
        return Relation.EXCLUSIVE if blocks == {"body", "orelse"} else order
    in_loop = any(isinstance(node, _LOOPS) for node, _ in path_a[:shared])
    return _relate_rests(rest_a, rest_b, order, loops, in_loop=in_loop)


def _relate_rests(
    rest_a: list[Step],
    rest_b: list[Step],
    order: Relation,
    loops: tuple[bool, bool],
    *,
    in_loop: bool,
) -> Relation:
    """Relate two lines in different statements of one block; ``in_loop`` when both are in one."""
    a_is_first = order is Relation.A_FIRST
    first = rest_a if a_is_first else rest_b
    # The header counts as inside: it may fetch the next batch.
    if loops[0 if a_is_first else 1] or any(
        isinstance(node, _LOOPS) and block in {"body", "test"} for node, block in first
    ):
        if in_loop:
            return Relation.B_AFTER_INNER_LOOP if a_is_first else Relation.A_AFTER_INNER_LOOP
        return Relation.B_AFTER_LOOP if a_is_first else Relation.A_AFTER_LOOP
    if _leaves(first):
        return Relation.EXCLUSIVE
    if _is_conditional(rest_a) and not _is_conditional(rest_b):
        return Relation.A_EXTRA
    if _is_conditional(rest_b) and not _is_conditional(rest_a):
        return Relation.B_EXTRA
    return order


def _is_conditional(rest: list[Step]) -> bool:
    return any(isinstance(node, ast.If) and block != "test" for node, block in rest)


def _leaves(rest: list[Step]) -> bool:
    """Tell whether an `if` block on the way down ends by leaving the code that follows it."""
    for node, block in rest:
        if isinstance(node, ast.If) and block in {"body", "orelse"}:
            statements = node.body if block == "body" else node.orelse
            if statements and isinstance(statements[-1], LEAVES):
                return True
    return False
