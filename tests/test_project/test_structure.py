"""The check of the layout fails for circles, arrows upwards, and imports that hide."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import structure

LAYERS = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["cli", "read | report", "evidence"]
"""


@pytest.fixture
def tree_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> structure.Tree:
    (tmp_path / "pyproject.toml").write_text(LAYERS)
    monkeypatch.setattr(structure, "LATE", {"whystuck.cli.": "commands start fast"})
    files = {
        "__init__": "",
        "cli/__init__": "",
        "cli/run": "import whystuck.read.tree\ndef run():\n    from whystuck.report import text\n",
        "read/__init__": "",
        "read/tree": "from whystuck.evidence import model\n",
        "report/__init__": "",
        "report/text": "from whystuck.evidence import model\n",
        "evidence/__init__": "",
        "evidence/model": "",
    }
    for name, text in files.items():
        path = tmp_path / "src" / "whystuck" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return structure.Tree(tmp_path / "src")


def change(tree: structure.Tree, name: str, text: str) -> structure.Tree:
    (tree.root / "whystuck" / name).write_text(text)
    return structure.Tree(tree.root)


def test_tree_in_order_has_nothing_wrong(tree_in_order: structure.Tree) -> None:
    assert (tree_in_order.circles, tree_in_order.upwards, tree_in_order.needless) == ([], [], [])
    assert tree_in_order.late == [("whystuck.cli.run", "whystuck.report.text")]


def test_arrow_upwards_and_beside_is_found(tree_in_order: structure.Tree) -> None:
    tree = change(tree_in_order, "evidence/model.py", "import whystuck.cli.run\n")
    assert "whystuck.evidence -> whystuck.cli" in tree.upwards

    tree = change(tree_in_order, "read/tree.py", "import whystuck.report.text\n")
    assert "whystuck.read -> whystuck.report" in tree.upwards


def test_circle_is_found_through_an_import_in_a_function(tree_in_order: structure.Tree) -> None:
    change(tree_in_order, "read/other.py", "import whystuck.read.tree\n")
    tree = change(tree_in_order, "read/tree.py", "def f():\n    from whystuck.read import other\n")

    assert ["whystuck.read.other", "whystuck.read.tree"] in tree.circles


def test_import_in_a_function_is_wrong_without_a_reason(tree_in_order: structure.Tree) -> None:
    late = "def f():\n    from whystuck.evidence import model\n"
    tree = change(tree_in_order, "read/tree.py", late)
    assert tree.needless == ["whystuck.read.tree -> whystuck.evidence.model in a function"]


def test_import_in_a_function_is_wrong_for_what_is_there_anyway(
    tree_in_order: structure.Tree,
) -> None:
    late = "import whystuck.read.tree\ndef f():\n    import whystuck.evidence.model\n"
    tree = change(tree_in_order, "cli/run.py", late)
    assert tree.needless == ["whystuck.cli.run -> whystuck.evidence.model in a function"]


def test_our_tree_is_in_order() -> None:
    tree = structure.Tree(structure.ROOT)
    assert [*tree.circles, *tree.upwards, *tree.needless] == []
