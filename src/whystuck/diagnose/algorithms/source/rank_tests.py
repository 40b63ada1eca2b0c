"""What a test of a rank says in source text, as far as that can be told without running it."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

# The rank in the job: that in a group, such as `tp_rank`, is another number.
_RANK = re.compile(r"(?:^|\.)_?(?:get_)?(?:global_|local_|world_)?rank(?:\(\))?$", re.IGNORECASE)
_ALIAS = re.compile(
    r"(?:^|;)[ \t]*(\w+)[ \t]*=[ \t]*(?:[\w.]+\.)?"
    r"(?:get_rank\(\)|int\([^;\n]{0,100}[\"'](?:LOCAL_)?RANK[\"'][^;\n]{0,100}\))"
    r"[ \t]*(?:[#;].*)?$",
    re.MULTILINE,
)
_FIRST = re.compile(
    r"is_(?:main|master|primary|coordinator|first|rank_?(?:zero|0)|global_zero)|"
    r"(?:main|master)_process$|(?:is_)?rank_?zero$",
    re.IGNORECASE,
)


def asks_for_rank(test: ast.expr) -> bool:
    """Return whether a condition asks which rank it is."""
    return any(
        isinstance(node, ast.Name | ast.Attribute | ast.Call)
        and bool(_RANK.search(ast.unparse(node)) or _FIRST.search(ast.unparse(node)))
        for node in ast.walk(test)
    )


def decide(test: ast.expr, rank: int, aliases: frozenset[str] = frozenset()) -> bool | None:
    """Tell how a rank answers a condition; None when something else decides.

    ``aliases`` are names of variables that hold the rank.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = decide(test.operand, rank, aliases)
        return None if answer is None else not answer
    if isinstance(test, ast.BoolOp):
        answers = [decide(value, rank, aliases) for value in test.values]
        stops = isinstance(test.op, ast.Or)
        if stops in answers:
            return stops
        # What else is asked holds for all ranks alike; the rank is what tells them apart.
        known = [answer for answer in answers if answer is not None]
        return known[0] if known else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compare(test, rank, aliases)
    text = ast.unparse(test)
    if _is_rank(text, aliases):
        return rank != 0
    return rank == 0 if _FIRST.search(text.removesuffix("()")) else None


def _compare(test: ast.Compare, rank: int, aliases: frozenset[str]) -> bool | None:
    left, right, operator = test.left, test.comparators[0], test.ops[0]
    if isinstance(left, ast.Constant) and isinstance(operator, ast.Eq | ast.NotEq):
        left, right = right, left
    if not _is_rank(ast.unparse(left), aliases):
        return None
    try:
        value = ast.literal_eval(right)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    if isinstance(value, int):
        answers = {
            ast.Eq: rank == value,
            ast.NotEq: rank != value,
            ast.Lt: rank < value,
            ast.LtE: rank <= value,
            ast.Gt: rank > value,
            ast.GtE: rank >= value,
        }
        return answers.get(type(operator))
    if isinstance(value, list | tuple | set) and isinstance(operator, ast.In | ast.NotIn):
        return (rank in value) is isinstance(operator, ast.In)
    return None


def _is_rank(text: str, aliases: frozenset[str]) -> bool:
    return text in aliases or bool(_RANK.search(text))


@lru_cache(maxsize=64)
def list_aliases(text: str) -> frozenset[str]:
    """Return the names that a source text gives to its rank."""
    return frozenset(_ALIAS.findall(text))
