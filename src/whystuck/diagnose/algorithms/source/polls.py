"""Loops that ask for a sign of another rank: a key of a store, or a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from whystuck.diagnose.algorithms.source.blocks import find_levels, parse_text
from whystuck.evidence.ops.collectives import Frame

_STORE = re.compile(r"(?:^|[._])\w{0,40}store(?:\(.{0,200}\))?$", re.IGNORECASE)
_STORE_CALLS = {"add", "check", "compare_set", "get", "multi_get", "num_keys", "wait"}
_FILE_CALLS = {"exists", "is_file", "isfile"}
_LEAVES = (ast.Break, ast.Return)


def find_poll(frame: Frame, sources: Mapping[str, str]) -> str:
    """Return what the loop around a line asks again and again before it goes on.

    Args:
        frame: Where a thread is: at the question, or at a sleep between two of them.
        sources: Text of the source files by path.

    Returns:
        The text of the call; empty where no loop asks, or the line does other work.
    """
    text = sources.get(frame.file, "")
    tree = parse_text(text) if text else None
    levels = find_levels(tree, frame.line) if tree else []
    loop = next((one.node for one in reversed(levels) if isinstance(one.node, ast.While)), None)
    if loop is None:
        return ""
    asked = next(_list_asked(loop), None)
    if asked is None:
        return ""
    line = text.splitlines()[frame.line - 1]
    is_at_question = asked.lineno <= frame.line <= (asked.end_lineno or asked.lineno)
    return ast.unparse(asked) if is_at_question or "sleep(" in line else ""


def _list_asked(loop: ast.While) -> Iterator[ast.Call]:
    """Yield the questions on whose answers a loop ends."""
    answers = {
        target.id: call
        for step in loop.body
        if isinstance(step, ast.Assign)
        for call in _list_questions(step.value)
        for target in step.targets
        if isinstance(target, ast.Name)
    }
    for test in (loop.test, *_list_exits(loop.body)):
        yield from _list_questions(test)
        for node in ast.walk(test):
            if isinstance(node, ast.Name) and node.id in answers:
                yield answers[node.id]


def _list_exits(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    for step in body:
        if isinstance(step, ast.If) and isinstance(step.body[-1], _LEAVES):
            yield step.test


def _list_questions(node: ast.AST) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            is_store = call.func.attr in _STORE_CALLS and _STORE.search(
                ast.unparse(call.func.value)
            )
            if is_store or call.func.attr in _FILE_CALLS:
                yield call
