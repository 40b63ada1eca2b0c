"""Evidence is opened in one way, which follows no link and waits for nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.each import each

SOURCE = Path(__file__).parents[2] / "src" / "whystuck"
FOLDERS = ("parse", "diagnose", "tracing", "read", "report")
# What is allowed there, and why.
ALLOWED = {
    ("guarded/evidence_files.py", "open"),  # the one way
    ("guarded/remote.py", "open"),  # a store of fsspec; what is fetched is a file of our own
    ("parse/dumps/fast/entry_scan.py", "read_text"),  # a text in bytes that were read
    ("parse/signatures/__init__.py", "read_bytes"),  # data of the package
    ("read/traces/memory.py", "read_text"),  # files of the kernel under fixed names
}
FILES = sorted(
    [*SOURCE.glob("*.py"), SOURCE / "guarded/evidence_files.py"]
    + [f for name in FOLDERS for f in SOURCE.glob(f"{name}/**/*.py")]
)


def find_openings(path: Path) -> Iterator[str]:
    """Find the calls that open a file to read it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        if "wb" in words or "w" in words:
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open"
        elif isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in {"open", "read_text", "read_bytes", "fromfile", "memmap", "loadtxt"}:
                yield name


@each("path", FILES)
def test_evidence_is_opened_in_one_way(path: Path) -> None:
    place = path.relative_to(SOURCE).as_posix()

    assert {name for name in find_openings(path) if (place, name) not in ALLOWED} == set()
