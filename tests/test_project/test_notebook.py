"""The notebook of the documentation runs, and shows what it says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def notebook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_notebook", DOCS / "notebook.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes(made: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """What each cell shows: the kinds of output."""
    return [
        [(one["output_type"], sorted(one.get("data", {}))) for one in cell.get("outputs", [])]
        for cell in made["cells"]
    ]


@pytest.mark.slow
def test_notebook_runs_and_shows_what_is_kept(notebook: ModuleType) -> None:
    kept = notebook.read()

    made = notebook.execute(kept)

    assert shapes(made) == shapes(kept)
    shown = json.dumps(made)
    # The made-up job has one rank that is late.
    assert "('P504', 'late-rank', [5])" in shown
    assert "('P504', 'late-rank', [5])" in json.dumps(kept)
    assert "error" not in {one for cell in shapes(made) for one, _ in cell}


def test_page_has_all_cells(notebook: ModuleType) -> None:
    kept = notebook.read()

    page = notebook.render_page(kept)

    assert page.count("```python") == sum(cell["cell_type"] == "code" for cell in kept["cells"])
    assert "rank 5 is the last in" in page
