"""Limits on the size of what a reader must hold in mind at once."""

import ast
from pathlib import Path

from tests.each import each

SOURCE = Path(__file__).parents[2] / "src" / "whystuck"
MODULE_LINES = 400
FUNCTION_LINES = 50

FILES = sorted(SOURCE.rglob("*.py"))


@each("path", FILES)
def test_module_stays_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@each("path", FILES)
def test_functions_stay_short(path: Path) -> None:
    long = {
        node.name: lines
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }

    assert not long
