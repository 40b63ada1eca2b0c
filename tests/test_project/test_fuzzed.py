"""Every reader of bytes belongs to a target of `make fuzz`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "whystuck"
# Where what comes from jobs, other users and tools is read.
READERS = [
    path
    for folder in ("parse", "collect", "evidence", "agent/fabric", "agent/rpc", "agent/metrics")
    for path in sorted((SOURCES / folder).rglob("*.py"))
]
TARGETS = [ast.parse(path.read_text()) for path in sorted((ROOT / "bench").glob("fuzz_*.py"))]
# Called by a reader that is in a target, or given what the user writes.
INSIDE = {"parse_line", "parse_log", "parse_stamp", "parse_ranks", "parse_ras_lines"}


def list_called() -> set[str]:
    """Return the names that targets use, beyond importing them."""
    nodes = [node for target in TARGETS for node in ast.walk(target)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_every_reader_is_fuzzed() -> None:
    readers = {
        node.name
        for path in READERS
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("parse_")
    }

    assert {"parse_ras", "parse_devices", "parse_gpu_kernels", "parse_beat"} <= readers
    assert (readers | {"list_members", "find_waits"}) - INSIDE - list_called() == set()


def test_every_target_is_run() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert [p.name for p in (ROOT / "bench").glob("fuzz_*.py") if p.name not in makefile] == []
