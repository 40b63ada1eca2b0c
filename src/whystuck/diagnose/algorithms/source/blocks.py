"""The blocks of a function that a line lies in, and the locks that it holds there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

# A step down in the syntax tree: the statement, and the block of it that holds the line.
Step = tuple[ast.stmt, str]
_LOCK_WORDS = ("lock", "mutex", "sem", "cond", "acquire", "guard")


@dataclass(frozen=True)
class Level:
    """A step down in the syntax tree, with the statements among which it is."""

    statements: Sequence[ast.stmt]
    node: ast.stmt
    block: str


@lru_cache(maxsize=64)
def parse_text(text: str) -> ast.Module | None:
    """Parse a source text; None where it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_path(tree: ast.Module, line: int) -> list[Step]:
    """Return the statements that a line lies in, the outermost first, and the block of each."""
    return [(level.node, level.block) for level in find_levels(tree, line)]


def find_levels(tree: ast.Module, line: int) -> list[Level]:
    """Find the statements around a line, outermost first, below the innermost function."""
    levels: list[Level] = []
    block: Sequence[ast.stmt] | None = tree.body
    while block:
        statements = block
        node = next(
            (item for item in block if item.lineno <= line <= (item.end_lineno or item.lineno)),
            None,
        )
        if node is None:
            break
        name, block = _find_block(node, line)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            levels = []
        else:
            levels.append(Level(statements, node, name))
    return levels


def _find_block(node: ast.stmt, line: int) -> tuple[str, Sequence[ast.stmt] | None]:
    """Find the block of a statement that holds a line."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None) or []
        if not isinstance(block, list):
            continue
        for item in block:
            if item_holds(item, line):
                return name, item.body if name in {"handlers", "cases"} else block
    return "test", None


def item_holds(item: ast.AST, line: int) -> bool:
    """Tell whether a node spans a line; a `case` is found by its body."""
    if isinstance(item, ast.match_case):
        return any(item_holds(statement, line) for statement in item.body)
    start, end = getattr(item, "lineno", 0), getattr(item, "end_lineno", 0)
    return bool(start <= line <= (end or start))


def find_lock(text: str, line: int) -> str:
    """Find the lock that a line takes: the text in ``with X:`` or ``X.acquire()``; else empty."""
    tree = parse_text(text) if text else None
    if tree is None:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                expression = item.context_expr
                if item_holds(expression, line):
                    return "" if _is_other_call(expression) else ast.unparse(expression)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "acquire"
            and item_holds(node, line)
        ):
            return ast.unparse(node.func.value)
    return ""


def _is_other_call(expression: ast.expr) -> bool:
    """Tell whether a block begins with a call that is of no lock, such as `open(path)`."""
    if not isinstance(expression, ast.Call):
        return False
    return not any(word in ast.unparse(expression.func).lower() for word in _LOCK_WORDS)


def find_held_locks(text: str, line: int) -> dict[str, int]:
    """Find the ``with`` blocks around a line: the text of each lock, and the line of its with."""
    tree = parse_text(text) if text else None
    held: dict[str, int] = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.With | ast.AsyncWith) and any(
            item_holds(statement, line) for statement in node.body
        ):
            for item in node.items:
                held[ast.unparse(item.context_expr)] = node.lineno
    return held
