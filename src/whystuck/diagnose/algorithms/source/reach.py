"""Who comes to a line that other ranks do not stand at: all, those of a rank, or whoever must.

A call is below conditions: the tests of the `if` around it, those that leave before it, and
handlers of exceptions. What a test asks for tells who meets it: a count of steps is the same on all
ranks, a rank is not, and of a value nobody knows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from whystuck.diagnose.algorithms.source.blocks import Level, find_levels, parse_text
from whystuck.diagnose.algorithms.source.branches import LEAVES, has_rank, is_in_loop
from whystuck.evidence.ops.collectives import Frame

# So many assignments and calls are followed from a name to what it stands for.
_MAX_DEPTH = 3
# Counts that all ranks keep alike, and what is said on the command line.
_COUNTED = re.compile(
    r"step|epoch|iter|world|every|interval|freq|period|(?:^|_)idx$|(?:^|_)index$|^i$|^n$|^it$|^end$"
    r"|^total$|(?:^|_)num(?:_|$)|(?:^|_)max(?:_|$)|(?:^|_)last(?:_|$)|(?:^|_)first(?:_|$)|accum"
)
# Names of counts that may be of what one rank has: `n = int((labels != -100).sum())`.
_MAY_COUNT_DATA = re.compile(r"^n$|^total$|(?:^|_)num(?:_|$)|^n_")
_SETTINGS = frozenset({"args", "cfg", "config", "conf", "opt", "opts", "hparams", "flags", "FLAGS"})
_COUNTING = frozenset({"int", "min", "max", "divmod", "range", "abs", "round", "bool"})


_COUNTS_OF_DATA = frozenset({"sum", "len", "numel", "item", "count_nonzero", "nonzero", "size"})


class Reach(Enum):
    """Who comes to a line."""

    UNKNOWN = auto()
    ALL = auto()
    OPEN = auto()
    BY_RANK = auto()


@dataclass(frozen=True)
class _Text:
    """A parsed file: what its names and functions stand for."""

    values: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, list[ast.expr]] = field(default_factory=dict)


def find_reach(site: Sequence[Frame], other: Sequence[Frame], sources: Mapping[str, str]) -> Reach:
    """Tell who comes to a call, as far as that differs from who comes to another one.

    Args:
        site: User frames of the call, innermost first.
        other: User frames of the other call.
        sources: Text of the source files by path.

    Returns:
        Who comes there; ``UNKNOWN`` where a source is missing, or nothing parts the two.
    """
    found = Reach.UNKNOWN
    for levels, beside, names in _walk_down(site, other, sources):
        if not levels:
            return Reach.UNKNOWN
        asked = [_judge(test, names) for test in _list_conditions(levels, beside)]
        if Reach.BY_RANK in asked:
            return Reach.BY_RANK
        is_open = found is Reach.OPEN or Reach.OPEN in asked
        found = Reach.OPEN if is_open else Reach.ALL
    return found


def is_later(site: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Tell whether a call stands below another one in the function in which their callers part."""
    shared = find_parting(site, other)
    if shared is None:
        return False
    return site[len(site) - 1 - shared].line > other[len(other) - 1 - shared].line


def is_avoidable(site: Sequence[Frame], other: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    """Tell whether some ranks may come past a call: by a condition of theirs, or an exception."""
    return find_reach(site, other, sources) in {Reach.OPEN, Reach.BY_RANK} or any(
        isinstance(level.node, ast.Try) and level.block == "body" and level.node.handlers
        for levels, _, _ in _walk_down(site, other, sources)
        for level in levels
    )


_Walk = tuple[Sequence[Level], Sequence[Level], "_Text"]


def _walk_down(
    site: Sequence[Frame], other: Sequence[Frame], sources: Mapping[str, str]
) -> Iterator[_Walk]:
    """Yield the statements around each frame of a call, from where two calls part, inwards.

    With them, those around the frame of the other call beside it; no statements where the source
    is missing.
    """
    shared = find_parting(site, other)
    for depth, frame in enumerate(reversed(site)) if shared is not None else ():
        if depth >= (shared or 0):
            text = sources.get(frame.file, "")
            tree = parse_text(text) if text else None
            is_first = depth == shared and tree is not None
            line = other[len(other) - 1 - depth].line if is_first else 0
            yield (
                find_levels(tree, frame.line) if tree else [],
                find_levels(tree, line) if tree and is_first else [],
                _read_names(text, tree) if tree else _Text(),
            )


def is_conditional(site: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    """Tell whether a call is below a condition in its own function."""
    tree = parse_text(sources.get(site[0].file, "")) if site else None
    levels = find_levels(tree, site[0].line) if tree else []
    return any(True for _ in _list_conditions(levels, []))


def skip_wrappers(
    site: tuple[Frame, ...], others: Collection[tuple[Frame, ...]], sources: Mapping[str, str]
) -> tuple[Frame, ...]:
    """Drop the innermost frames that say nothing of why only this rank made a call.

    Such a frame is one that other ranks came to from elsewhere, and whose function makes the call
    without a condition and not in a loop. Where its source is missing, it is kept.

    Args:
        site: User frames of the call, innermost first.
        others: User frames of calls of other ranks.
        sources: Text of the source files by path.

    Returns:
        The frames from the one on that may be wrong.
    """
    for depth, frame in enumerate(site[:-1], 1):
        is_shared = any(
            other[:depth] == site[:depth] and other[depth : depth + 1] not in ((), site[depth:][:1])
            for other in others
        )
        tree = parse_text(sources.get(frame.file, ""))
        # Of a source that is missing or another one, no statement holds the line.
        if not is_shared or tree is None or not find_levels(tree, frame.line):
            return site[depth - 1 :]
        if is_conditional((frame,), sources) or is_in_loop((frame,), sources):
            return site[depth - 1 :]
    return site[-1:]


def find_parting(site: Sequence[Frame], other: Sequence[Frame]) -> int | None:
    """Count the callers that two calls share; None where they part in no frame of one function."""
    for depth, (frame, beside) in enumerate(zip(reversed(site), reversed(other), strict=False)):
        if frame.file != beside.file or frame.function != beside.function:
            return None
        if frame.line != beside.line:
            return depth
    return None


def _list_conditions(levels: Sequence[Level], beside: Sequence[Level]) -> Iterator[ast.expr | None]:
    """Yield the tests that decide whether a line is come to, where another one is come to.

    None stands for a handler of exceptions, whose test is what may be raised.
    """
    shared = 0
    while shared < min(len(levels), len(beside)) and _is_same(levels[shared], beside[shared]):
        shared += 1
    for depth, level in enumerate(levels):
        if depth < shared:
            continue
        yield from _list_guards(level, beside[depth] if depth == shared < len(beside) else None)
        node = level.node
        if level.block == "handlers":
            yield None
        elif isinstance(node, ast.If) and level.block in {"body", "orelse"}:
            yield node.test
        elif isinstance(node, ast.Match) and level.block == "cases":
            yield node.subject


def _is_same(level: Level, other: Level) -> bool:
    return level.node is other.node and level.block == other.block


def _list_guards(level: Level, beside: Level | None) -> Iterator[ast.expr]:
    """Yield the tests that leave a block before a statement of it, but after another one."""
    begun = beside is None or beside.node.lineno > level.node.lineno
    for statement in level.statements:
        if statement is level.node:
            return
        if begun and isinstance(statement, ast.If) and _is_left(statement):
            yield statement.test
        begun = begun or (beside is not None and statement is beside.node)


def _is_left(statement: ast.If) -> bool:
    ends = (block[-1] for block in (statement.body, statement.orelse) if block)
    return any(isinstance(end, LEAVES) and not isinstance(end, ast.Raise) for end in ends)


def _read_names(text: str, tree: ast.Module) -> _Text:
    known = _KNOWN.get(text)
    if known is not None:
        return known
    found = _Text()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    found.values.setdefault(ast.unparse(target), node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions[node.name] = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value
            ]
    if len(_KNOWN) > _MAX_KNOWN:
        _KNOWN.clear()
    _KNOWN[text] = found
    return found


_MAX_KNOWN = 64
_KNOWN: dict[str, _Text] = {}


def _judge(test: ast.expr | None, text: _Text) -> Reach:
    """Tell who meets a condition."""
    if test is None:
        return Reach.OPEN
    if any(has_rank(ast.unparse(one)) for one in _expand(test, text, _MAX_DEPTH)):
        return Reach.BY_RANK
    return Reach.ALL if _is_shared(test, text, _MAX_DEPTH) else Reach.OPEN


def _expand(test: ast.expr, text: _Text, depth: int) -> Iterator[ast.expr]:
    """Yield an expression, and what its names and functions stand for."""
    yield test
    if not depth:
        return
    for node in ast.walk(test):
        for value in _look_up(node, text):
            yield from _expand(value, text, depth - 1)


def _look_up(node: ast.AST, text: _Text) -> Sequence[ast.expr]:
    """Return what an answer to a question is made of; not what an object is made from."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        return text.functions.get(name, ())
    if isinstance(node, ast.Name | ast.Attribute):
        value = text.values.get(ast.unparse(node))
        return (value,) if value is not None and _is_answer(value, text) else ()
    return ()


def _is_answer(value: ast.expr, text: _Text) -> bool:
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Name | ast.Attribute)
    name = ast.unparse(value.func).rpartition(".")[2]
    return name in _COUNTING or name in text.functions or "rank" in name


def _is_shared(node: ast.expr, text: _Text, depth: int) -> bool:
    """Tell whether an expression is made of counts and settings alone."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        known = text.values.get(ast.unparse(node))
        is_of_data = known is not None and _MAY_COUNT_DATA.search(name) and _asks_data(known)
        is_told = bool(_COUNTED.search(name.lower())) or name.isupper() or _is_setting(node)
        if is_told or is_of_data:
            return not is_of_data
        return known is not None and depth > 0 and _is_shared(known, text, depth - 1)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        returned = text.functions.get(name, ())
        is_known = name in _COUNTING or (
            bool(returned) and depth > 0 and all(_is_shared(v, text, depth - 1) for v in returned)
        )
        return is_known and all(_is_shared(one, text, depth) for one in node.args)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        # Every so many steps, whatever that number is called.
        return _is_shared(node.left, text, depth)
    parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    is_plain = isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Tuple)
    return is_plain and all(_is_shared(one, text, depth) for one in parts)


def _asks_data(value: ast.expr) -> bool:
    """Tell whether a value is counted in what a rank has: by a call that is no arithmetic."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _COUNTS_OF_DATA
        for node in ast.walk(value)
    )


def _is_setting(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if name in _SETTINGS:
            return True
    return isinstance(node, ast.Name) and node.id in _SETTINGS
