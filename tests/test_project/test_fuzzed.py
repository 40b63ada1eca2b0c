"""Every reader of bytes belongs to a target of `make fuzz`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
READERS = sorted((ROOT / "src" / "whystuck" / "parse").rglob("*.py"))
TARGETS = "\n".join(path.read_text() for path in sorted((ROOT / "bench").glob("fuzz_*.py")))
# Called by a reader that is in a target.
INSIDE = {"parse_line", "parse_log", "parse_stamp"}


def test_every_reader_is_fuzzed() -> None:
    readers = {
        node.name
        for path in READERS
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("parse_")
    }

    assert {name for name in readers - INSIDE if name not in TARGETS} == set()


def test_every_target_is_run() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert [p.name for p in (ROOT / "bench").glob("fuzz_*.py") if p.name not in makefile] == []
