"""Runs the notebook of the documentation, keeps what its cells show, and makes a page of it.

python docs/notebook.py
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
NOTEBOOK = DOCS / "trace_analysis.ipynb"
PAGE = DOCS / "notebooks" / "trace-analysis.md"


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run all code cells of a notebook, one after the other, as Jupyter does.

    Args:
        notebook: What the file holds.

    Returns:
        The notebook with what its cells print, and the value of their last expressions.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    with tempfile.TemporaryDirectory() as scratch, _inside(scratch):
        for number, cell in enumerate(notebook["cells"], start=1):
            if cell["cell_type"] == "code":
                outputs = list(_run("".join(cell["source"]), names, number))
                cells.append({**cell, "execution_count": number, "outputs": outputs})
            else:
                cells.append(cell)
    return {**notebook, "cells": cells}


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Run in an empty folder, with the sources of the benchmarks at hand."""
    before, paths = Path.cwd(), list(sys.path)
    os.chdir(folder)
    sys.path.insert(0, str(DOCS.parent / "bench"))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = paths


def _run(source: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102 - our own cells
        if isinstance(last, ast.Expr):
            code = compile(ast.Expression(last.value), f"cell {number}", "eval")
            value = eval(code, names)  # noqa: S307 - as above
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        yield {
            "output_type": "execute_result",
            "execution_count": number,
            "metadata": {},
            "data": data,
        }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def render_page(notebook: dict[str, Any]) -> str:
    """Make a page in Markdown of a notebook that was run."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append("```{raw} html\n" + "".join(data["text/html"]).strip() + "\n```")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def read() -> dict[str, Any]:
    """Read the notebook of the documentation."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return notebook


def main() -> None:
    """Run it, and write it back."""
    NOTEBOOK.write_text(json.dumps(execute(read()), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
