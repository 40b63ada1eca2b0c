"""Which collectives a source text lets a rank call, and which only some ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from whystuck.diagnose.algorithms.source.rank_tests import asks_for_rank, decide, list_aliases
from whystuck.diagnose.algorithms.stacks.frames import name_function
from whystuck.evidence.ops.collectives import Frame

# Names that nothing but a collective has.
_SURE = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_tensor",
        "all_gather_coalesced",
        "all_to_all",
        "all_to_all_single",
        "broadcast_object_list",
        "gather_object",
        "monitored_barrier",
        "new_group",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter_object_list",
        "full_tensor",
        "wait_for_everyone",
    }
)
# Names that others have, too: what they are called on decides.
_COMMON = frozenset(("barrier", "broadcast", "gather", "reduce", "scatter"))
_RECEIVER = re.compile(r"(?:^|\.)(?:dist|distributed|c10d|funcol|accelerator|fabric|strategy)$")
_IMPORTED = re.compile(r"^[ \t]*from torch\.distributed\b.* import ", re.MULTILINE)
_TRANSFER = re.compile(r"\b(?:isend|irecv|batch_isend_irecv|P2POp)\b")
_GROUP_WORDS = {"group", "process_group", "pg"}
_GROUP = re.compile(r"group|(?:^|[._])pgs?\b")
_DEFAULT_GROUPS = {"None", "dist.group.WORLD", "torch.distributed.group.WORLD", "group.WORLD"}
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_MAX_DEPTH = 4
# Functions that call each other in many ways would be read again and again.
_MAX_READ = 5000


@dataclass(frozen=True)
class SourceCall:
    """A collective in a source text.

    ``path`` holds the line in each function that leads to it, the innermost last; ``has_group``
    says that the call names a group.
    """

    op: str
    path: tuple[Frame, ...]
    has_group: bool = False

    @property
    def place(self) -> Frame:
        """The line of the call."""
        return self.path[-1]


def find_lone_calls(
    function: Frame, rank: int, others: Sequence[int], sources: Mapping[str, str]
) -> list[SourceCall]:
    """Find the collectives of a function that a rank calls and others, by their rank, do not.

    A call that each of them makes at a place of its own is none of them.

    Args:
        function: A frame of the function.
        rank: The rank.
        others: The other ranks.
        sources: Text of the source files by path.

    Returns:
        The calls, in the order of the source.
    """
    mine = list_calls(function, rank, sources)
    found = mine
    for other in others:
        theirs = list_calls(function, other, sources)
        lone = _subtract(mine, theirs)
        left = [call.op for call in _subtract(theirs, mine)]
        kept = []
        for call in lone:
            if call.op in left:
                left.remove(call.op)
            else:
                kept.append(call)
        found = [call for call in found if call in kept]
    return found if others else []


def _subtract(calls: Sequence[SourceCall], others: Sequence[SourceCall]) -> list[SourceCall]:
    known = {one.path for one in others}
    return [one for one in calls if one.path not in known]


def list_calls(function: Frame, rank: int, sources: Mapping[str, str]) -> list[SourceCall]:
    """List the collectives that a rank may call in a function, in the order of the source."""
    node = _find_function(function, sources)
    if node is None:
        return []
    reader = _Reader(rank, sources)
    return list(reader.read(node, function.file, ()))


def uses_transfers(sources: Mapping[str, str]) -> bool:
    """Tell whether any source text starts sends or receives without waiting for them."""
    return any(_TRANSFER.search(text) for text in sources.values())


def is_skippable(frames: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    """Tell whether a condition that asks for no rank may lead past a call.

    Args:
        frames: The frames of the call below the function that all ranks are in, innermost first.
        sources: Text of the source files by path.

    Returns:
        Whether one of the functions may return before it comes to its line.
    """
    return any(_may_leave(frame, sources) for frame in frames)


def _may_leave(frame: Frame, sources: Mapping[str, str]) -> bool:
    node = _find_function(frame, sources)
    if node is None:
        return False
    if any(not asks_for_rank(text) for text in _list_conditions(node, frame.line)):
        return False
    return any(
        isinstance(step, ast.If)
        and _leaves(step.body)
        and (step.end_lineno or step.lineno) < frame.line
        and not asks_for_rank(step.test)
        for step in ast.walk(node)
    )


def _list_conditions(node: ast.AST, line: int) -> list[ast.expr]:
    """List what the ``if`` statements ask whose blocks hold a line."""
    return [
        step.test
        for step in ast.walk(node)
        if isinstance(step, ast.If)
        and (step.body[0].lineno <= line <= (step.end_lineno or step.lineno))
    ]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue)


@dataclass
class _Reader:
    """Reads functions as one rank runs them."""

    rank: int
    sources: Mapping[str, str]
    _open: list[ast.AST] = field(default_factory=list)
    _read: int = 0

    def read(self, function: ast.AST, file: str, path: tuple[Frame, ...]) -> Iterator[SourceCall]:
        """Yield the collectives of a function, and those of the functions that it calls."""
        if len(path) >= _MAX_DEPTH or function in self._open:
            return
        self._open.append(function)
        name = getattr(function, "name", "<module>")
        for call in self._walk(getattr(function, "body", []), file):
            self._read += 1
            if self._read > _MAX_READ:
                break
            here = (*path, Frame(name, file, call.lineno))
            op = _name_collective(call, self.sources.get(file, ""))
            if op:
                yield SourceCall(op, here, bool(_read_group(call)))
                continue
            for callee, where in self._resolve(call, file):
                yield from self.read(callee, where, here)
        self._open.pop()

    def _walk(self, body: Sequence[ast.stmt], file: str) -> Iterator[ast.Call]:
        """Yield the calls that the rank may make in a block."""
        aliases = list_aliases(self.sources.get(file, ""))
        for step in body:
            if isinstance(step, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(step, ast.If):
                yield from _list_nested(step.test)
                answer = decide(step.test, self.rank, aliases)
                if answer is not False:
                    yield from self._walk(step.body, file)
                if answer is not True:
                    yield from self._walk(step.orelse, file)
                if answer is True and isinstance(step.body[-1], _LEAVES):
                    return
                continue
            yield from _list_heads(step)
            for block in _list_blocks(step):
                yield from self._walk(block, file)

    def _resolve(self, call: ast.Call, file: str) -> Iterator[tuple[ast.AST, str]]:
        """Find the function of the user's that a call is to, by its name where that is unique."""
        name = _last_name(call.func)
        found = [
            (node, path)
            for path, text in self.sources.items()
            for node in _list_functions(text).get(name, ())
        ]
        here = [one for one in found if one[1] == file]
        chosen = here if len(here) == 1 else found
        if len(chosen) == 1:
            yield chosen[0]


def _list_blocks(step: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(step, name, None) or []
    for name in ("handlers", "cases"):
        yield from (one.body for one in getattr(step, name, ()))


def _list_heads(step: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls of a statement outside its blocks."""
    for name, value in ast.iter_fields(step):
        if name in {"body", "orelse", "finalbody", "handlers", "cases"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield from _list_nested(node)


def _list_nested(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression, the inner ones first."""
    if isinstance(node, ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from _list_nested(child)
    if isinstance(node, ast.Call):
        yield node


def _name_collective(call: ast.Call, text: str) -> str:
    name = _last_name(call.func)
    if name in _SURE:
        return name
    if name not in _COMMON:
        return ""
    if isinstance(call.func, ast.Attribute):
        return name if _RECEIVER.search(ast.unparse(call.func.value)) else ""
    return name if _IMPORTED.search(text) else ""


def name_group(frame: Frame, sources: Mapping[str, str]) -> str | None:
    """Return what the call at a line names as its group.

    Returns:
        The text of the argument; empty for the default group, None when the source does not tell.
    """
    tree = _parse(sources.get(frame.file, ""))
    found = {
        _read_group(node)
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call)
        and node.lineno <= frame.line <= (node.end_lineno or node.lineno)
        and _name_collective(node, sources[frame.file])
    }
    return found.pop() if len(found) == 1 else None


def _read_group(call: ast.Call) -> str:
    named = [ast.unparse(word.value) for word in call.keywords if word.arg in _GROUP_WORDS]
    # A group may also be one of the arguments without a name.
    in_place = [text for one in call.args if _GROUP.search(text := ast.unparse(one))]
    return next((text for text in (*named, *in_place) if text not in _DEFAULT_GROUPS), "")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _find_function(frame: Frame, sources: Mapping[str, str]) -> ast.AST | None:
    """Find the innermost function around a line; the module for a frame of a module."""
    tree = _parse(sources.get(frame.file, ""))
    if tree is None or name_function(frame) == "<module>":
        return tree
    inside = [
        node
        for nodes in _list_functions(sources[frame.file]).values()
        for node in nodes
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno)
    ]
    # Of a function whose head is not shown, its statements stand by themselves.
    is_bare = any(one.lineno <= frame.line <= (one.end_lineno or one.lineno) for one in tree.body)
    return max(inside, key=lambda node: node.lineno, default=tree if is_bare else None)


@lru_cache(maxsize=64)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=64)
def _list_functions(
    text: str,
) -> Mapping[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]]:
    found: dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]] = {}
    tree = _parse(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = (*found.get(node.name, ()), node)
    return found
