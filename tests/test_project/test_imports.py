"""The import budget: what a bare import may cost, and where the probe may look."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.each import each

PACKAGE = Path(__file__).parents[2] / "src" / "whystuck"
HEAVY = {"click", "jinja2", "msgspec", "numpy", "psutil", "rich", "torch"}


def modules_after(statement: str, *options: str) -> set[str]:
    """Names of the top-level modules that a fresh Python holds after a statement."""
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {statement}; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_whystuck_loads_no_dependency() -> None:
    assert not modules_after("import whystuck") & HEAVY


def test_import_probe_without_site_packages_works() -> None:
    # GIVEN a Python that sees the standard library and our sources, and nothing else
    loaded = modules_after("import whystuck.probe", "-I", "-S")

    assert not loaded & HEAVY


def test_import_cli_does_not_load_torch() -> None:
    assert "torch" not in modules_after("import whystuck.cli")


def oldest_python() -> str:
    """A Python 3.9 that runs, or a skip."""
    found = shutil.which("python3.9")
    if not found or subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("no Python 3.9 on this machine")
    return found


def test_import_probe_in_the_oldest_python_works() -> None:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import whystuck.probe"

    done = subprocess.run(
        [oldest_python(), "-W", "error", "-c", code], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def probe_files() -> list[Path]:
    return sorted((PACKAGE / "probe").rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Names of the top-level modules that a file imports anywhere, relative imports left out."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    return names


def test_probe_has_files() -> None:
    assert probe_files()


@each("path", probe_files())
def test_probe_imports_the_standard_library_only(path: Path) -> None:
    # torch is there when the job has loaded it; the probe is part of that job
    # ... and its own package has this name inside a job
    allowed = sys.stdlib_module_names | {"torch", "_whystuck_probe"}
    foreign = {
        name
        for name in imports_of(path)
        if name.partition(".")[0] not in allowed and not f"{name}.".startswith("whystuck.probe.")
    }

    assert not foreign
